"""Options that several commands share, and the places and ops that they name."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli.boundary import Usage

if TYPE_CHECKING:
    from kgen.contract.op import Op
    from kgen.gates.routing import Recorded
    from kgen.loop.settings import Settings
    from kgen.store import CandidateFolder, Run, Runs

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, part of it, its folder, or 'latest'.")]
RunsOption = Annotated[str, typer.Option("--runs", metavar="DIR", help="Folder of the run folders (KGEN_RUNS).")]
SetOption = Annotated[str, typer.Option("--set", metavar="DIR", help="Kernel set, or 'builtin' (KGEN_SET).")]
CacheOption = Annotated[str, typer.Option("--cache", metavar="DIR", help="Cache of builds (KGEN_CACHE).")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
AxisOption = Annotated[
    list[str] | None,
    typer.Option("--axis", metavar="NAME=VALUE", help="Value of another axis of the op; repeat for several axes."),
]
TraceOption = Annotated[
    str,
    typer.Option("--routing-trace", metavar="FILE", help="Experts of recorded tokens, where times depend on them."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@contextmanager
def arguments() -> Iterator[None]:
    """A ValueError of the block is about what the user asked for, and its one line says what would be right."""
    try:
        yield
    except ValueError as error:
        raise Usage(str(error)) from error


def runs_at(folder: str) -> "Runs":
    from kgen.store import Runs, runs_path

    return Runs(runs_path(folder))


def cache_at(folder: str) -> Path:
    from kgen.store import cache_path

    return Path(folder).expanduser().absolute() if folder else cache_path()


def places(runs: str = "", kernels: str = "", cache: str = "") -> str:
    """The options that say where things are, as a next command has to repeat them: "" or " --runs DIR ..."."""
    given = (("--runs", runs), ("--set", kernels), ("--cache", cache))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


def find_run(name: str, folder: str) -> "Run":
    """Raises Usage when there is no such run."""
    with arguments():
        return runs_at(folder).find(name)


def find_candidate(run: "Run", name: str) -> "CandidateFolder":
    """Raises Usage when the run has no such candidate."""
    with arguments():
        return run.folder(name)


def trace_at(path: str) -> "Recorded | None":
    """None where no trace is given. Raises Usage for what cannot be read as one."""
    from kgen.gates.routing import recorded

    with arguments():
        return recorded(Path(path).expanduser().absolute()) if path else None


def find_op(name: str) -> "Op":
    """Raises Usage with the known names."""
    from kgen.ops import REGISTRY

    with arguments():
        return REGISTRY.get(name)


def axes_of(given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE options by name. Raises Usage (one line)."""
    axes: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"--axis {text!r} is not NAME=VALUE; kgen ops show OP lists the axes of an op")
        if axes.setdefault(name, value) != value:
            raise Usage(f"--axis {name} is given twice, as {axes[name]!r} and as {value!r}: a run has one value")
    return axes


def one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise Usage(f"{option} {value!r} is unknown; known: {', '.join(name for name in known if name)}")
    return value


def checked(settings: "Settings", op: "Op") -> "Settings":
    """Raises Usage for a matrix or limits that make no sense."""
    with arguments():
        return settings.checked(op)
