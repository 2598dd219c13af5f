"""kgen config: the settings in force, and where each comes from."""

import os
from pathlib import Path
from typing import Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption

ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="A setting for this command (kgen config lists them); repeat."),
]


def register(app: typer.Typer) -> None:
    app.command("config")(config)


def config(
    show_origin: Annotated[bool, typer.Option("--show-origin", help="Also where each value comes from.")] = False,
    flags: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show models, endpoint and prices as a command would use them; of a key only whether it is set."""
    from kgen.config import load
    from kgen.proposers.redact import shown_url

    found = load(os.environ, Path.cwd(), flags or [])
    key = str(found.endpoint("key_env"))
    rows = [(name, shown_url(v) if name == "endpoint.base_url" else v, origin) for name, v, origin in found.rows()]
    state = "set" if os.environ.get(key, "").strip() else "not set"
    rows.insert(0, (key, state, "environment"))
    if json:
        values = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        output.emit({"schema": "kgen.config/1", "files": [str(p) for p in found.files], "values": values})
        return
    shown = [[name, "" if value is None else value, *([origin] if show_origin else [])] for name, value, origin in rows]
    output.show_table("", ["setting", "value", *(["origin"] if show_origin else [])], shown)
