"""kgen evidence: what several machines found of the same kernels, side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import JsonOption, SetOption

if TYPE_CHECKING:
    from kgen.gates.machines import Group, Report
    from kgen.records import Evidence


def register(app: typer.Typer) -> None:
    app.command("evidence")(evidence)


def evidence(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Evidence that kits wrote, one file a machine (default: the set's)."),
    ] = None,
    kernels: SetOption = "",
    json: JsonOption = False,
) -> None:
    """Evidence side by side for each kernel and GPU model; what machines disagree about is shown, and ends with 1."""
    from kgen.gates.machines import groups

    found = groups([*_of_files(files or ()), *([] if files else _of_set(kernels))])
    apart = [line for group in found for line in group.disagreements]
    if json:
        body = [_as_data(group) for group in found]
        output.emit({"schema": "kgen.evidence-groups/1", "groups": body, "agree": not apart})
    else:
        _show(found)
    if apart:
        raise typer.Exit(boundary.FAILED)


def _of_files(files: Sequence[str]) -> "list[Report]":
    from kgen.gates.ingest import read
    from kgen.gates.kit_results import MergeError, distinct, merge
    from kgen.gates.machines import Report

    reports = []
    for name in files:
        try:
            parts = distinct(part.evidence for part in read(name, Path(name).read_bytes()))
        except OSError as error:
            raise boundary.Usage(f"cannot read {name}: {error.strerror}") from None
        for candidate in dict.fromkeys(part.candidate for part in parts):
            mine: list[Evidence] = [part for part in parts if part.candidate == candidate]
            try:
                reports.append(Report(name, mine[0] if len(mine) == 1 else merge(mine, "")))
            except MergeError as error:
                raise boundary.Usage(f"{name}: {error}; give one file for each machine") from None
    return reports


def _of_set(kernels: str) -> "list[Report]":
    from kgen.gates.machines import Report
    from kgen.store import KernelSet, set_path

    found = KernelSet(set_path(kernels).path)
    return [Report(f"#{p.seq}", found.evidence(p).evidence) for p in found.manifest().promotions]


def _as_data(group: "Group") -> dict[str, object]:
    return {
        "op": group.op,
        "candidate": group.candidate,
        "gpu": group.gpu,
        "reports": [report.where for report in group.reports],
        "gates": group.gates,
        "points": len(group.points),
        "disagreements": group.disagreements,
    }


def _show(found: "Sequence[Group]") -> None:
    rows = []
    for group in found:
        gates = "; ".join(f"{gate} {'/'.join(dict.fromkeys(said.values()))}" for gate, said in group.gates.items())
        shown = [group.op, group.candidate[:12], group.gpu, ", ".join(r.where for r in group.reports), gates]
        rows.append([*shown, str(len(group.points)), str(len(group.disagreements) or "")])
    head = ["op", "candidate", "GPU", "evidence", "gates", "points", "disagreements"]
    output.show_table("" if rows else "there is no evidence", head, rows, right=(5, 6))
    for group in found:
        for line in group.disagreements:
            output.data(f"{group.op} {group.candidate[:12]} on {group.gpu}: {line}")
