"""The sections of the Markdown report that judge, each a function of the document; "" where there is nothing to say."""

from collections.abc import Iterable, Mapping
from typing import Any

from kgen.records import PerfPoint
from kgen.records.envelope import HEADLINE
from kgen.report import judged, verdict
from kgen.report.document import Document
from kgen.report.text import cell, code, details, grid, set_in_line

NUMBERS = (
    "Relative L2 distances to true float64 and to float64 rounded as the op says; each line is the most strained of"
    " its dims and output."
)
DISTANCES = "Distances to float64 of the candidate's decode over stock's own (1 = as near), with 95 % intervals."
ANSWERS = "Items that each side answered; the difference is candidate minus stock, with its 95 % interval."
DEPARTURES = (
    "How often greedy tokens depart: from stock in free generation (stock: in another batch composition), from "
    "plain decoding with drafts; the ratio is of departures a token, candidate over stock."
)


def headline(doc: Document) -> str:
    """The verdict, in one line and one paragraph."""
    said = verdict.paragraph(doc)
    parts = [f"# {set_in_line(verdict.title(doc))}", set_in_line(said), f"Next: {code(doc.next_command)}"]
    return "\n\n".join(part for part in parts if part)


def gates(doc: Document) -> str:
    return "## Gates\n\n" + grid(judged.gates(doc.subject)) if doc.subject else ""


def found(doc: Document) -> str:
    """The most informative findings about a candidate that a gate refused, one line each."""
    lines = [f"* {cell(line)}" for line in verdict.findings(doc.subject)]
    return "## What was found\n\n" + "\n".join(lines) if lines else ""


def numeric(doc: Document) -> str:
    """The most strained row of each dims and output, and where it is."""
    rows = judged.numeric_rows(doc.subject) if doc.subject else []
    return f"## Numbers\n\n{NUMBERS} {compared(rows)}\n\n" + grid(judged.numbers(rows)) if rows else ""


def compared(rows: list[Mapping[str, Any]]) -> str:
    """How many comparisons there are."""
    total = sum(int(r.get("judged", 1)) for r in rows)
    return f"{total} comparisons in all, over {len({r['what'] for r in rows})} kinds of input."


def model(doc: Document) -> str:
    found = judged.models(doc.subject) if doc.subject else {}
    if doc.subject is None or not found:
        return ""
    parts = [f"## In the model\n\n{DISTANCES}\n\n" + grid(judged.distances(found))]
    if beside := judged.beside(doc.subject):
        names = ", ".join(f"{cell(op)} {code(candidate)}" for op, candidate in beside)
        parts.append(f"Judged with other candidates in place as well, all at once: {names}.")
    for words, table in ((ANSWERS, judged.answers(found)), (DEPARTURES, judged.departures(found))):
        if table:
            parts.append(f"{words}\n\n" + grid(table))
    for defect, where, refused, said in judged.mutants(doc.subject):
        verdict = "refused" if refused else "**passed: the gate is blind**"
        parts.append(f"Mutant {code(defect)} ({cell(where)}): {verdict}. {cell(said, 440)}")
    return "\n\n".join(parts)


def speed(doc: Document) -> str:
    points = doc.subject.evidence.points if doc.subject and doc.subject.evidence else ()
    if not points:
        return ""
    first = [p for p in points if p.column == HEADLINE]
    others = [p for p in points if p.column != HEADLINE]
    said = (
        f"µs a call, medians; the ratio is candidate / best baseline with its 95 % bootstrap interval over paired"
        f" repetitions. The **{HEADLINE}** column decides ({cell(first[0].timer if first else '')}); roofline is"
        " the floor by bytes at a plain read's rate over the measured time."
    )
    text = f"## Speed\n\n{said}\n\n{_points(first)}"
    for column in dict.fromkeys(p.column for p in others):
        mine = [p for p in others if p.column == column]
        text += "\n\n" + details(f"{cell(column)} ({cell(mine[0].timer)})", _points(mine))
    return text


def _points(points: Iterable[PerfPoint]) -> str:
    return grid(judged.times(points))
