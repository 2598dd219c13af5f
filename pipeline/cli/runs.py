"""kgen runs [show RUN]: what was tried, and how it came out."""

from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, RunArgument, RunsOption, find_candidate, find_op, find_run, places, runs_at
from kgen.cli.costs import cost

if TYPE_CHECKING:
    from kgen.store.candidates import CandidateFolder


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The runs kept here.", invoke_without_command=True)
    group.callback()(listing)
    group.command("show")(show)
    group.command("diff")(diff)
    group.command("cost")(cost)
    app.add_typer(group, name="runs")


def listing(context: typer.Context, runs: RunsOption = "", json: JsonOption = False) -> None:
    """List the runs, oldest first."""
    if context.invoked_subcommand is not None:
        return
    from kgen.store import IntegrityError

    found, damaged = [], []
    for run in runs_at(runs).list():
        try:
            found.append((run, run.info, run.state))
        except IntegrityError as error:
            damaged.append(str(error))
    if json:
        listed = [{"id": r.id, "state": state, "info": info, "path": str(r.path)} for r, info, state in found]
        output.emit({"schema": "kgen.runs/1", "runs": listed, "damaged": damaged})
        return
    rows = [[r.id, i.op, i.settings.get("proposer", ""), state, i.outcome, len(r.folders())] for r, i, state in found]
    output.show_table(str(runs_at(runs).root), ["run", "op", "proposer", "state", "outcome", "candidates"], rows, (5,))
    for line in damaged:
        output.say(f"kgen: damaged: {line}")


def show(
    run: RunArgument = "latest",
    candidate: Annotated[str, typer.Option("--candidate", help="Source and diagnosis of one, by number or id.")] = "",
    runs: RunsOption = "",
    json: JsonOption = False,
) -> None:
    """One run: its candidates and how far they got, who descends from whom, and what was decided and why."""
    from kgen.cli.lineage import show_lineage
    from kgen.cli.propose import conclude
    from kgen.report import as_json, lineage, read

    found = find_run(run, runs)
    op = find_op(found.info.op)
    if candidate:
        _one(find_candidate(found, candidate), json)
        return
    document = read(found, op)
    if json:
        output.emit({**as_json(document), "lineage": lineage.as_json(document)})
    else:
        show_lineage(document)
        conclude(found, op, places(runs))


def _one(folder: "CandidateFolder", json: bool) -> None:
    """The source on stdout, so that it can be kept as a file; what was found wrong with it on stderr."""
    from kgen.diagnosis.shown import of_failure, shown
    from kgen.proposers.quoting import strip_terminal
    from kgen.records import Status

    source, verdict = folder.candidate(), folder.verdict()
    if json:
        output.emit(source)
    else:
        output.data(source.source)
    failed = verdict.failed if verdict else None
    if failed is not None and failed.status is Status.FAIL:
        output.say(f"refused at {failed.gate}:\n{strip_terminal(shown(of_failure(failed)))}")


def diff(
    a: Annotated[str, typer.Argument(metavar="RUN", help="One run.")],
    b: Annotated[str, typer.Argument(metavar="RUN", help="The other one.")],
    runs: RunsOption = "",
    json: JsonOption = False,
) -> None:
    """Whether two runs came to the same candidates, codes and decisions, times excluded; exit 1 where not."""
    from kgen.cli.replay import compared

    compared(find_run(a, runs), find_run(b, runs), json)
