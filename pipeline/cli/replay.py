"""kgen replay RUN: a run again, from its recorded answers; --check says whether it came out the same."""

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.boundary import FAILED
from kgen.cli.common import (
    CacheOption,
    JsonOption,
    QuietOption,
    RunArgument,
    RunsOption,
    SetOption,
    cache_at,
    find_op,
    find_run,
    runs_at,
)

if TYPE_CHECKING:
    from kgen.store import Run


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    run: RunArgument = "latest",
    check: Annotated[
        bool, typer.Option("--check", help="Compare candidates, codes and decisions; exit 1 where they differ.")
    ] = False,
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Repeat a run with its own settings, its recorded answers in place of the proposer. Offline."""
    from kgen.cli.progress import Watcher
    from kgen.loop.session import begin, work_on
    from kgen.loop.settings import read_settings
    from kgen.proposers.choose import choose
    from kgen.store import set_path

    recorded = find_run(run, runs)
    op = find_op(recorded.info.op)
    stored = read_settings(recorded.info.settings, f"{recorded.path}/run.json")
    settings = replace(stored, proposer="replay", replay=str(recorded.path))
    output.log_to_stderr(quiet)
    proposer = choose("replay", source=recorded.path).proposer
    again = begin(runs_at(runs), op, settings, shlex.join(["kgen", *sys.argv[1:]]))
    if not quiet:
        output.say(f"run {again.id} in {again.path}, replaying {recorded.path}")
    with Watcher(quiet) as watcher:
        ended = work_on(again, op, settings, proposer, cache_at(cache), watcher, set_path(kernels).path)
    if not quiet:
        output.say(f"ended: {ended.why}")
    if check:
        compared(recorded, again, json)
    elif json:
        output.emit({"schema": "kgen.replay/1", "run": again.id, "outcome": ended.outcome})


def compared(a: "Run", b: "Run", json: bool) -> None:
    """Say whether two runs are the same, times excluded. Exits 1 with the first difference."""
    from kgen.loop.replaying import difference

    found = difference(a, b)
    if json:
        runs = {"a": a.id, "b": b.id, "same": not found.said}
        output.emit({"schema": "kgen.runs-diff/1", **runs, "difference": found.said, "compared": found.compared})
    else:
        counts = ", ".join(f"{n} {what}" for what, n in found.compared.items())
        output.data(f"differs: {found.said}" if found.said else f"the same: {counts}")
    if found.said:
        raise typer.Exit(FAILED)
