"""kgen doctor: what this machine can do, and the command that helps where it cannot."""

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import CacheOption, JsonOption, RunsOption, SetOption, cache_at, one_of, runs_at

if TYPE_CHECKING:
    from kgen.gates.builder.conformance import Report, Result

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


Sandbox = Annotated[
    bool,
    typer.Option("--sandbox", help="Attack the sandbox, line by line of docs/sandbox.md, at every level (a minute)."),
]
Levels = Annotated[
    list[str] | None, typer.Option("--level", help="With --sandbox: only this level; repeat for several.")
]
Lines = Annotated[list[str] | None, typer.Option("--line", help="With --sandbox: only this line; repeat for several.")]
CELLS = {"holds": "holds", "does not hold": "NO", "cannot be tried here": "untried"}


def doctor(
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    sandbox: Sandbox = False,
    level: Levels = None,
    line: Lines = None,
    json: JsonOption = False,
) -> None:
    """Show the sandbox levels, compiler, torch, GPU, C compiler, places and the default proposer."""
    if sandbox:
        _conformance(level or [], line or [], json)
        return
    if level or line:
        raise boundary.Usage("--level and --line belong to --sandbox")
    makers: tuple[Callable[[], list[Check]], ...] = (
        _sandbox,
        _compiler,
        _cc,
        _runtime,
        _gpu,
        _quarantine,
        _packages,
        _proposer,
    )
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


def _conformance(levels: list[str], names: list[str], json: bool) -> None:
    """Raises NoSandboxError without a level, Missing when the one that builds use does not keep what it promises."""
    from kgen.gates.builder.conformance import check
    from kgen.gates.sandbox import LEVELS, choose
    from kgen.gates.sandbox.levels import advice, available
    from kgen.gates.sandbox.lines import LINES

    for level in levels:
        one_of("--level", level, tuple(LEVELS))
    for name in names:
        one_of("--line", name, tuple(line.name for line in LINES))
    choose()
    for name, works, why in available():
        if name in levels and not works:
            raise boundary.Missing(f"{name} does not work here: {why}. {advice({name: why})}")
    report = check(levels, [line for line in LINES if line.name in names or not names])
    if json:
        output.emit({"schema": "kgen.conformance/1", "ok": report.ok, "report": report})
    else:
        _show(report)
    for result in report.failed:
        output.say(f"{_where(result)} {result.state}: {result.found}")
    if not report.ok:
        raise boundary.Missing(f"{_where(report.failed[0])} {report.failed[0].state}; {_fix(report.failed[0].line)}")


def _where(result: "Result") -> str:
    return f"sandbox {result.level}, as a {result.fence}: {result.line}"


def _fix(name: str) -> str:
    from kgen.gates.sandbox.lines import LINES

    return next(line.fix for line in LINES if line.name == name)


def _show(report: "Report") -> None:
    """A row a line, a column a level and fence; what a level does not promise in brackets, explained below."""
    from kgen.gates.sandbox.lines import LINES

    columns = list(dict.fromkeys((r.level, r.fence) for r in report.results))
    cells = {(r.line, r.level, r.fence): f"({_cell(r)})" if r.gap else _cell(r) for r in report.results}
    tried = [line for line in LINES if any(r.line == line.name for r in report.results)]
    rows = [[line.name, line.tried, line.seen, *(cells.get((line.name, *c), "-") for c in columns)] for line in tried]
    title = f"builds use {report.active}; tried in {report.seconds:.0f} s"
    output.show_table(title, ["line", "tried", "must be seen", *(f"{level} {fence}" for level, fence in columns)], rows)
    for name, why in report.why.items():
        if why:
            output.say(f"{name} does not work here: {why}")
    for why in dict.fromkeys(r.gap for r in report.results if r.gap):
        of = sorted({f"{r.level}: {r.line}" for r in report.results if r.gap == why})
        output.say(f"not promised: {', '.join(of)}: {why}")


def _cell(result: "Result") -> str:
    return CELLS[result.state]


def _sandbox() -> list[Check]:
    from kgen.gates.sandbox import NoSandboxError, choose
    from kgen.gates.sandbox.levels import advice, available

    try:
        active = choose().label
    except NoSandboxError:
        active = ""
    found = available()
    levels = [Check(f"sandbox {n}", works, "works" if works else why, advice({n: why})) for n, works, why in found]
    state = f"active level: {active}; kgen doctor --sandbox attacks it" if active else "no level works"
    return [Check("sandbox", bool(active), state, advice({n: why for n, _, why in found}), True), *levels]


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


def _quarantine() -> list[Check]:
    """A line for each GPU that is not used until it is released."""
    from kgen.gates.gpu import places, quarantine
    from kgen.store.errors import StoreError

    try:
        sick = quarantine.listed()
    except StoreError as error:
        return [Check("GPU folder", False, str(error), f"choose another with {places.VARIABLE}")]
    return [Check("GPU quarantine", False, str(r), f"when it is well: kgen gpu release {r.device}") for r in sick]


def _packages() -> list[Check]:
    out = []
    for name in PACKAGES:
        try:
            out.append(Check(name, True, metadata.version(name)))
        except metadata.PackageNotFoundError:
            out.append(Check(name, False, "not installed", f"pip install {name}"))
    return out


def _proposer() -> list[Check]:
    from kgen.config import ConfigError
    from kgen.proposers.base import SetupError
    from kgen.proposers.choose import choose

    try:
        return [Check("default proposer", True, choose().line.removeprefix("proposer: "))]
    except SetupError as error:
        return [Check("default proposer", False, str(error), "set OPENAI_API_KEY, or use --proposer search")]
    except ConfigError as error:
        return [Check("default proposer", False, str(error), "kgen config --show-origin")]


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
