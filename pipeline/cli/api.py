"""kgen api NAME: what the installed compiler's package says of one of its names, read and not imported."""

from typing import Annotated

import typer

from kgen.cli import output
from kgen.cli.boundary import Missing
from kgen.cli.common import JsonOption

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="With its modules, e.g. cute.arch.lane_idx.")]


def register(app: typer.Typer) -> None:
    app.command("api")(api)


def api(name: NameArgument, json: JsonOption = False) -> None:
    """Look a name of the installed CuTe DSL up: its signature, or the nearest real names (exit 1)."""
    from kgen.diagnosis.api_names import installed

    names = installed()
    if names is None:
        raise Missing("no compiler is installed here: kgen doctor says how to get it")
    found = names.lookup(name)
    near = [] if found is not None else names.nearest(name)
    if json:
        output.emit({"schema": "kgen.api/1", "name": name, "found": found, "nearest": near})
    else:
        output.data(found if found is not None else f"there is no {name}; nearest: {', '.join(near) or 'none'}")
    if found is None:
        raise typer.Exit(1)
