"""kgen watch RUN: how a run stands, from another shell, until it ends. Only reads."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, RunArgument, RunsOption, arguments, find_op, find_run

if TYPE_CHECKING:
    from rich.text import Text

    from kgen.cli.glance import Glance
    from kgen.contract.op import Op
    from kgen.store import Run

RUNNING = "running"


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    run: RunArgument = "latest",
    once: Annotated[bool, typer.Option("--once", help="Show it once and stop.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="How often to look.")] = 1.0,
    runs: RunsOption = "",
    json: JsonOption = False,
) -> None:
    """Attach to a run that works: funnel, best so far, budgets, current stage, last failure; ends when it does."""
    from kgen.cli.glance import glance

    with arguments():
        if not every > 0:
            raise ValueError(f"--every {every:g}: look every so many seconds, more than 0")
    found = find_run(run, runs)
    op = find_op(found.info.op)
    if json:
        output.emit(glance(found, op).as_data())
    elif once or not sys.stdout.isatty():
        _plain(found, op, every, once)
    else:
        _live(found, op, every)


def _plain(run: "Run", op: "Op", every: float, once: bool) -> None:
    """The lines that have changed, each time some have."""
    from kgen.cli.glance import glance, lines

    shown: list[str] = []
    while True:
        seen = glance(run, op)
        now = [line for line in lines(seen) if once or not line.startswith("minutes")]  # the clock alone is no news
        for line in now:
            if line not in shown:
                output.data(line)
        sys.stdout.flush()
        shown = now
        if once or seen.state != RUNNING:
            return
        time.sleep(every)


def _live(run: "Run", op: "Op", every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from kgen.cli.glance import glance

    console = Console(highlight=False)
    seen = glance(run, op)
    with Live(picture(seen), console=console, auto_refresh=False) as live:
        while seen.state == RUNNING:
            time.sleep(every)
            seen = glance(run, op)
            live.update(picture(seen), refresh=True)


def picture(seen: "Glance") -> "Text":
    """For rich. Words of candidates are text: no markup is read in them."""
    from rich.text import Text

    from kgen.cli.glance import lines

    styles = {"failed": "red", "best": "green", "now": "cyan"}
    shown = [Text(line, style=styles.get(line.split(" ")[0], "")) for line in lines(seen)]
    shown[0].stylize("bold")
    return Text("\n").join(shown)
