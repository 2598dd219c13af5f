"""kgen lessons [retire ID]: what earlier runs taught, how well that is borne out, and what was retired."""

from typing import Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, RunsOption, arguments, find_op, runs_at


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What earlier runs taught.", invoke_without_command=True)
    group.callback()(listing)
    group.command("retire")(retire)
    app.add_typer(group, name="lessons")


def listing(
    context: typer.Context,
    op: Annotated[str, typer.Option("--op", metavar="OP", help="Of one op only.")] = "",
    runs: RunsOption = "",
    json: JsonOption = False,
) -> None:
    """List the lessons, retired ones last with the reason."""
    if context.invoked_subcommand is not None:
        return
    from kgen.loop.lessons import FOLDER, read_all

    name = find_op(op).name if op else ""
    folder = runs_at(runs).root / FOLDER
    kept = read_all(folder)
    found = sorted((x for x in kept.lessons if name in ("", x.op)), key=lambda x: (bool(x.retired), x.op, x.kind, x.id))
    if json:
        output.emit({"schema": "kgen.lessons/1", "folder": str(folder), "lessons": found, "damaged": kept.damaged})
        return
    rows = [[x.id, x.op, x.claim, x.support, x.against, x.last[:10], x.retired] for x in found]
    head = ["lesson", "op", "claim", "for", "against", "last", "retired"]
    output.show_table(str(folder) if rows else f"no lessons in {folder} yet", head, rows, (3, 4))
    for line in kept.damaged:
        output.say(f"kgen: damaged: {line}")


def retire(
    lesson: Annotated[str, typer.Argument(metavar="ID", help="Of the lesson, or how it begins.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it is kept with the lesson.")],
    runs: RunsOption = "",
) -> None:
    """Put a lesson out of use for good; it is kept, with the reason."""
    from kgen.loop.lessons import FOLDER, retire

    with arguments():
        done = retire(runs_at(runs).root / FOLDER, lesson, why)
    output.data(f"retired {done.id}: {done.claim}")
