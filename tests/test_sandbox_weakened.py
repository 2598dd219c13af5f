"""Each conformance line notices when its defence is off: the probes run against edited copies of the sandbox.

The copies take the place of what runs inside; the judge's side is as it is. Most are tried at the level `landlock`,
where one fence stands alone. Probes leave everything but their bait alone here.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import kgen.gates.builder
import kgen.gates.sandbox
from kgen.gates.builder.bait import Grounds, laid_out
from kgen.gates.builder.conformance import Result, State, Trial
from kgen.gates.sandbox import LEVELS, NONE, available, fence, levels
from kgen.gates.sandbox.lines import JOB, LINES, TOOL

WORKS = {name: not why for name, _, why in available()}
Edit = tuple[str, str, str]  # file of the sandbox or the builder, what is replaced, by what

ANY_CLONE: Edit = ("sandbox/seccomp.py", "RET_ALLOW, RET_ERRNO | errno.EAGAIN", "RET_ALLOW, RET_ALLOW")
NO_SCOPES: Edit = ("sandbox/fence.py", "SCOPES if abi >= 6 else 0", "0")


def _no_limit(name: str, field: str) -> Edit:
    return "sandbox/fence.py", f"resource.{name}: limits.{field},", f"resource.{name}: 0,"


def _allowed(table: str) -> Edit:
    return (
        "sandbox/seccomp.py",
        "{**NETWORK, **SPY, **KERNEL, **(",
        "{**NETWORK, **SPY, **KERNEL, **(".replace(f"**{table}, ", ""),
    )


SHORT: Edit = ("sandbox/probe_limits.py", "PATIENCE = 4.0", "PATIENCE = 0.5")
NO_LANDLOCK: Edit = ("sandbox/fence.py", "    if policy.landlock:\n", "    if False:\n")


NO_PRIVS = '_check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")'


@dataclass(frozen=True)
class Weakened:
    """A sandbox without one defence, and the lines that must notice."""

    lines: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    level: str = "landlock"
    fence: str = JOB


COPIES: Mapping[str, Weakened] = {
    "limits": Weakened(
        ("endless-loop", "memory", "file-size", "open-files"),
        (
            SHORT,
            _no_limit("RLIMIT_CPU", "cpu_seconds"),
            _no_limit("RLIMIT_AS", "memory"),
            _no_limit("RLIMIT_FSIZE", "file_bytes"),
            _no_limit("RLIMIT_NOFILE", "open_files"),
        ),
    ),
    "deadline": Weakened(
        ("sleeping", "leftovers"),
        (
            SHORT,
            ("sandbox/probe_limits.py", "LINGER = 8.0", "LINGER = 1.0"),
            ("builder/server.py", "now > running.deadline and", "False and"),
        ),
    ),
    "watchers": Weakened(
        ("disk", "many-files", "endless-output"),
        (
            SHORT,
            ("sandbox/folder.py", "FOLDER_BYTES = 64 << 20", "FOLDER_BYTES = 1 << 40"),
            ("sandbox/folder.py", "FOLDER_ENTRIES = 256", "FOLDER_ENTRIES = 1 << 20"),
            ("builder/server.py", "FLOOD_BYTES = 8 << 20", "FLOOD_BYTES = 1 << 40"),
        ),
    ),
    "deletion": Weakened(
        ("deleted-files", "nameless-files"),
        (
            ("sandbox/seccomp.py", "for numbers in DELETE.values() if", "for numbers in {}.values() if"),
            ("sandbox/seccomp.py", "[(JUMP_SET, TMPFILE)], REFUSED", "[(JUMP_SET, TMPFILE)], RET_ALLOW"),
        ),
    ),
    "processes": Weakened(
        ("fork-bomb", "daemons"), (("sandbox/seccomp.py", "PROCESSES | UNSEEN", "UNSEEN"), ANY_CLONE)
    ),
    "reserving": Weakened(
        ("reserving",), (("sandbox/seccomp.py", "_refuse(FALLOCATE[column], errno.EOPNOTSUPP)", "[]"),)
    ),
    "descriptors": Weakened(("descriptors",), (("builder/server.py", "os.closerange(3,", "os.closerange(2000,"),)),
    "Landlock": Weakened(("write-outside", "other-jobs", "home"), (NO_LANDLOCK,)),
    "sockets": Weakened(
        ("tcp", "udp", "dns", "unix-socket", "abstract-socket"),
        (_allowed("NETWORK"), ("sandbox/fence.py", "NET_TCP if abi >= 4 else 0", "0"), NO_SCOPES),
    ),
    "tracing": Weakened(("ptrace",), (_allowed("SPY"), NO_LANDLOCK)),
    "signals": Weakened(
        ("signals",), (_allowed("SPY"), NO_SCOPES, ("sandbox/seccomp.py", "_own_only(KILL[column], pid)", "[]"))
    ),
    "others": Weakened(
        ("others-limits",), (("sandbox/seccomp.py", "for numbers in OWN_ONLY.values()", "for numbers in {}.values()"),)
    ),
    "namespaces": Weakened(("namespaces", "kernel-doors"), (_allowed("KERNEL"), ANY_CLONE)),
    "death": Weakened(
        ("closing",),
        (
            ("sandbox/fence.py", "    if policy.die_with_parent:\n", "    if False:\n"),
            ("builder/server.py", "for running in self._jobs.values():", "for running in ():"),
        ),
    ),
    "everything": Weakened(
        ("environment", "setuid"),
        (
            ("sandbox/fence.py", "    if policy.drop_capabilities:\n", "    if False:\n"),
            ("sandbox/fence.py", f"    {NO_PRIVS}\n    limit_resources", "    limit_resources"),
        ),
        "none",
    ),
    "no process namespace": Weakened(("judge-killed",), (), "landlock", TOOL),
}
BOMBS = ("fork-bomb", "threads")  # take the processes of every build beside them: under make deep
CASES = [
    pytest.param(copy, line, id=line, marks=[pytest.mark.deep] if line in BOMBS else [])
    for copy, weakened in COPIES.items()
    for line in weakened.lines
]


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with laid_out() as made:
        (made.folder / "open").mkdir()
        (made.folder / "open").chmod(0o777)
        yield made


@pytest.fixture(scope="module")
def tried() -> dict[str, dict[str, Result]]:
    """What each copy came to, filled on demand."""
    return {}


def _weaken(weakened: Weakened, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let what runs inside be an edited copy."""
    for package in (kgen.gates.builder, kgen.gates.sandbox):
        name = package.__name__.rsplit(".", 1)[1]
        shutil.copytree(package.__path__[0], folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        patch.setattr(package, "__path__", [str(folder / name)])
    for file, old, new in weakened.edits:
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(old) == 1 and old != new, f"{file}: {old}"
        (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    patch.setattr(fence, "__file__", str(folder / "sandbox" / "fence.py"))


def _try(weakened: Weakened, grounds: Grounds, folder: Path) -> dict[str, Result]:
    level = {**LEVELS, "none": NONE}[weakened.level]
    some = [replace(line, seconds=4.0) for line in LINES if line.name in weakened.lines]
    with pytest.MonkeyPatch.context() as patch:
        _weaken(weakened, folder, patch)
        results = Trial(level, weakened.fence, grounds, [str(grounds.folder / "open")], private=False).results(some)
    return {result.line: result for result in results}


@pytest.mark.parametrize("copy, line", CASES)
def test_a_probe_notices_when_its_defence_is_off(
    copy: str,
    line: str,
    grounds: Grounds,
    tried: dict[str, dict[str, Result]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    weakened = COPIES[copy]
    if not WORKS.get(weakened.level, True):
        pytest.skip(f"{weakened.level} does not work here")
    if copy not in tried:
        folder = tmp_path_factory.mktemp("copy")
        for parent in (folder, *folder.parents):
            if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
                parent.chmod(0o755)
        tried[copy] = _try(weakened, grounds, folder)
    assert tried[copy][line].state is State.BROKEN, tried[copy][line].found


def test_threads_are_noticed_where_nobody_counts_them(grounds: Grounds, monkeypatch: pytest.MonkeyPatch) -> None:
    if not WORKS["landlock"]:
        pytest.skip("landlock does not work here")
    monkeypatch.setattr(levels, "OWN_USER_PROCESSES", 4096)
    monkeypatch.setattr(levels, "JOB_PROCESSES", 4096)
    some = [line for line in LINES if line.name == "threads"]
    (result,) = Trial(LEVELS["landlock"], JOB, grounds, [], private=False).results(some)
    assert result.state is State.BROKEN and "threads" in result.found


def test_every_line_has_a_weakened_copy() -> None:
    assert {line for weakened in COPIES.values() for line in weakened.lines} | {"threads"} == {n.name for n in LINES}
