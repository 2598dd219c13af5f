"""kgen report RUN: the page for a pull request, or the same as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, RunArgument, RunsOption, find_op, find_run, one_of


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    run: RunArgument = "latest",
    form: Annotated[str, typer.Option("--format", help="md or json.")] = "md",
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Write it there instead of to stdout.")] = "",
    runs: RunsOption = "",
    json: JsonOption = False,
) -> None:
    """The report of a run: verdict, gates, numbers, speed, environment, provenance."""
    from kgen.report import as_json, markdown, read
    from kgen.store import DURABLE
    from kgen.store.documents import json_bytes

    form = one_of("--format", form, ("md", "json"))
    form = "json" if json else form
    found = find_run(run, runs)
    document = read(found, find_op(found.info.op))
    data = json_bytes(as_json(document)) if form == "json" else markdown(document).encode("utf-8")
    if out:
        DURABLE.write(Path(out).expanduser().absolute(), data)
        output.say(f"report: {out}")
        return
    if form == "json":
        output.emit(as_json(document))
    else:
        output.data(data.decode("utf-8").rstrip("\n"))
