"""kgen mcp and kgen agents: coding agents that drive the loop."""

import importlib.util
import logging
import shlex
import sys
from importlib.resources import files
from typing import Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import CacheOption, RunsOption, SetOption, cache_at, runs_at

LACKING = "kgen mcp needs the mcp package: pip install 'kgen[mcp]'; without it agents use kgen propose --mailbox DIR"


def register(app: typer.Typer) -> None:
    app.command("mcp")(mcp)
    app.command("agents")(agents)


def agents() -> None:
    """Print the page that tells a coding agent how to drive the loop."""
    output.data(files("kgen.agents").joinpath("AGENTS.md").read_text(encoding="utf-8").removesuffix("\n"))


def mcp(
    arch: Annotated[list[str] | None, typer.Option("--arch", help="Claimed architecture; repeat for several.")] = None,
    dims: Annotated[list[str] | None, typer.Option("--dims", help="Only these dims; repeat for several.")] = None,
    tokens: Annotated[
        list[int] | None, typer.Option("--tokens", help="Only these token bins; repeat for several.")
    ] = None,
    candidates: Annotated[int, typer.Option("--candidates", min=1, help="Candidates of one run at most.")] = 24,
    minutes: Annotated[float, typer.Option("--minutes", help="Working time of one run at most.")] = 60.0,
    interpret: Annotated[
        bool, typer.Option("--interpret/--no-interpret", help="Without a GPU, check numbers in the PTX interpreter.")
    ] = True,
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
) -> None:
    """Serve the loop to a coding agent: the Model Context Protocol on stdin and stdout, logs on stderr."""
    if importlib.util.find_spec("mcp") is None:
        raise boundary.Missing(LACKING)
    from kgen.agents.desk import Desk, Matrix
    from kgen.agents.labour import Labour
    from kgen.agents.server import serve
    from kgen.loop.settings import ARCHS
    from kgen.store import set_path

    if unknown := [a for a in arch or () if a not in ARCHS]:
        raise boundary.Usage(f"unknown architecture {unknown[0]!r}; known: {', '.join(ARCHS)}")
    matrix = Matrix(
        tuple(arch or ARCHS), tuple(dims or ()), tuple(tokens or ()), candidates, minutes=minutes, interpret=interpret
    )
    place, root = set_path(kernels).path, runs_at(runs)
    desk = Desk(root, place, Labour(cache_at(cache), place), matrix, shlex.join(["kgen", *sys.argv[1:]]))
    output.log_to_stderr()
    logging.getLogger("mcp").setLevel(logging.WARNING)
    output.say(f"kgen mcp: runs go to {root.root}; waiting for a client on stdin")
    if serve(desk):
        raise KeyboardInterrupt
