"""kgen doctor: what this machine can do, and the command that helps where it cannot."""

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import typer

from kgen.cli import boundary, output
from kgen.cli.common import CacheOption, JsonOption, RunsOption, SetOption, cache_at, runs_at

PACKAGES = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "langgraph", "openai", "rich", "typer")


@dataclass(frozen=True)
class Check:
    """`needed`: without it nothing can be staged here."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = False


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(runs: RunsOption = "", kernels: SetOption = "", cache: CacheOption = "", json: JsonOption = False) -> None:
    """Show the sandbox levels, compiler, torch, GPU, C compiler, places and the default proposer."""
    makers: tuple[Callable[[], list[Check]], ...] = (_sandbox, _compiler, _cc, _runtime, _gpu, _packages, _proposer)
    checks = [check for make in makers for check in make()]
    checks += _places(runs, kernels, cache)
    missing = [c for c in checks if c.needed and not c.ok]
    if json:
        output.emit({"schema": "kgen.doctor/1", "ok": not missing, "checks": [vars(c) for c in checks]})
    else:
        rows = [
            ["ok" if c.ok else ("MISSING" if c.needed else "-"), c.name, c.found, "" if c.ok else c.fix] for c in checks
        ]
        output.show_table(f"kgen on Python {platform.python_version()}", ["", "what", "found", "what helps"], rows)
    if missing:
        raise boundary.Missing(f"{missing[0].name}: {missing[0].found}; {missing[0].fix}")


def _sandbox() -> list[Check]:
    from kgen.gates.sandbox import NoSandboxError, choose
    from kgen.gates.sandbox.levels import available

    try:
        active = choose().label
    except NoSandboxError:
        active = ""
    levels = [
        Check(
            f"sandbox {name}", works, "works" if works else why, "apt-get install bubblewrap" if name == "bwrap" else ""
        )
        for name, works, why in available()
    ]
    fix = "apt-get install bubblewrap, or a kernel with Landlock (5.13 or newer)"
    return [
        Check("sandbox", bool(active), f"active level: {active}" if active else "no level works", fix, True),
        *levels,
    ]


def _compiler() -> list[Check]:
    from kgen.gates.builder.outcome import BuilderError
    from kgen.gates.compile import compiler

    fix = "pip install nvidia-cutlass-dsl apache-tvm-ffi"
    try:
        found = compiler()
    except BuilderError as error:
        return [Check("compiler", False, str(error), fix, True)]
    return [Check("compiler", True, f"nvidia-cutlass-dsl {found.version} ({found.flavour})", fix, True)]


def _cc() -> list[Check]:
    path = next((p for name in ("cc", "gcc", "clang") if (p := shutil.which(name))), None)
    return [Check("C compiler", path is not None, path or "none", "apt-get install gcc", True)]


def _runtime() -> list[Check]:
    from kgen.serve.runtime import RuntimeMissing, find_runtime

    try:
        found = find_runtime()
    except RuntimeMissing as error:
        return [Check("runtime library", False, str(error), "pip install nvidia-cutlass-dsl")]
    return [Check("runtime library", True, f"{found.flavour}: {found.cute_library}")]


def _gpu() -> list[Check]:
    from kgen.gates.environment import device_arch, environment

    arch = device_arch()
    if not arch:
        fix = "numeric, model and perf gates: kgen kit writes a file that runs them on a GPU host"
        return [Check("GPU", False, "no CUDA GPU", fix)]
    here = environment()
    return [Check("GPU", True, f"{here.gpu} ({arch}), driver {here.driver}, CUDA {here.cuda}")]


def _packages() -> list[Check]:
    out = []
    for name in PACKAGES:
        try:
            out.append(Check(name, True, metadata.version(name)))
        except metadata.PackageNotFoundError:
            out.append(Check(name, False, "not installed", f"pip install {name}"))
    return out


def _proposer() -> list[Check]:
    from kgen.proposers.base import SetupError
    from kgen.proposers.choose import choose

    try:
        return [Check("default proposer", True, choose().line.removeprefix("proposer: "))]
    except SetupError as error:
        return [Check("default proposer", False, str(error), "set OPENAI_API_KEY, or use --proposer search")]


def _places(runs: str, kernels: str, cache: str) -> list[Check]:
    from kgen.store import set_path

    kept = set_path(kernels)
    places = (
        ("kernel set", kept.path, kept.writable),
        ("runs", runs_at(runs).root, True),
        ("cache", cache_at(cache), True),
    )
    return [_place(name, path, wanted) for name, path, wanted in places]


def _place(name: str, path: Path, wanted: bool) -> Check:
    there = next(p for p in (path, *path.parents) if p.exists())
    ok = not wanted or (there.is_dir() and os.access(there, os.W_OK))
    state = "read-only, as asked for" if not wanted else "writable" if ok else "not writable"
    return Check(name, ok, f"{path} ({state})", "choose another with --set, --runs or --cache")
