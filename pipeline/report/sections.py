"""The sections of the Markdown report that judge, each a function of the document; "" where there is nothing to say."""

from collections.abc import Iterable, Mapping
from typing import Any

from kgen.diagnosis.shown import of_failure
from kgen.records import PerfPoint, Status
from kgen.records.envelope import HEADLINE, envelope
from kgen.records.manifest import OWN_KEY
from kgen.report import judged
from kgen.report.document import Document, Entry
from kgen.report.facts import counts
from kgen.report.text import cell, code, details, grid

MOST_FOUND = 3
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
    subject = doc.subject
    if subject is None:
        return f"# {doc.op.name}: nothing was proposed\n\nNext: {code(doc.next_command)}"
    name = code(subject.candidate.id[:12])
    title = f"# {doc.op.name}: {subject.state.upper()}: candidate {name}"
    return f"{title}\n\n{SAY[subject.state](doc, subject)}\n\nNext: {code(doc.next_command)}"


def _promotable(doc: Document, entry: Entry) -> str:
    evidence = entry.evidence
    labels = list(envelope(evidence.points).values()) if evidence else []
    where = f" on {cell(evidence.environment.gpu)} ({evidence.arch})" if evidence else ""
    trust = "" if entry.trust == OWN_KEY else " **The evidence is self-reported: it promotes only with `--trust`.**"
    said = f"All four gates passed{where}: {labels.count('win')} points win, {labels.count('tie')} tie"
    return f"{said}, worst upper bound {entry.ratio:.3f} of the best baseline.{trust} {counts(doc)}"


def _staged(doc: Document, entry: Entry) -> str:
    waiting = [r.gate for r in entry.results if r.status is Status.SKIP or r.interpreted]
    builds = entry.sound_builds
    archs = ", ".join(dict.fromkeys(b.problem.arch for b in builds))
    said = f"It was built and audited at {len(builds)} points ({archs}). **Not proven yet: {', '.join(waiting)}**"
    numbers = entry.result(judged.NUMERIC)
    right = " Its numbers are right in the PTX interpreter." if numbers and numbers.interpreted else ""
    return f"Everything that can be checked without a GPU passed.{right} {said}: a GPU has to say. {counts(doc)}"


def _failed(doc: Document, entry: Entry) -> str:
    failed = entry.verdict.failed
    assert failed is not None  # that is what its state says
    blame = "The tool or the machine failed" if failed.status is Status.ERROR else "Refused"
    return f"{blame} at {failed.gate}: {code(failed.code)}: {cell(failed.message)} {counts(doc)}"


def _unfinished(doc: Document, entry: Entry) -> str:
    why = "; ".join(f"{code(r.code)}: {cell(r.message)}" for r in entry.results)
    return f"No candidate came to a verdict about all that can be checked here. {why} {counts(doc)}"


SAY = {
    "promotable": _promotable,
    "staged": _staged,
    "failed": _failed,
    "error": _failed,
    "not chosen": _unfinished,
    "unfinished": _unfinished,
}


def gates(doc: Document) -> str:
    return "## Gates\n\n" + grid(judged.gates(doc.subject)) if doc.subject else ""


def found(doc: Document) -> str:
    """The most informative findings about a candidate that a gate refused, one line each."""
    lines = [f"* {cell(line)}" for line in findings(doc.subject)]
    return "## What was found\n\n" + "\n".join(lines) if lines else ""


def findings(entry: Entry | None) -> list[str]:
    failed = entry.verdict.failed if entry else None
    if failed is None or failed.status is not Status.FAIL:
        return []
    return [f.line for f in of_failure(failed).findings[:MOST_FOUND]]


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
