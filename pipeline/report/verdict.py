"""What a run's verdict is, in a line and a paragraph, and what was found about a candidate that a gate refused.

Pieces of plain text, `Code` and `Strong`, to be set one after the other.
"""

from kgen.diagnosis.shown import of_failure
from kgen.records import Status
from kgen.records.envelope import envelope
from kgen.records.manifest import OWN_KEY
from kgen.report.document import Document, Entry
from kgen.report.facts import counts
from kgen.report.judged import NUMERIC, routing_in
from kgen.report.plain import Code, Pieces, Strong, cut

MOST_FOUND = 3
MESSAGE = 220  # characters of a gate's message in the paragraph


def title(doc: Document) -> Pieces:
    """Of an op that routes, it says where the experts came from."""
    how = f"; {said}" if (said := routing_in(doc)) else ""
    if doc.subject is None:
        return (f"{doc.op.name}: nothing was proposed{how}",)
    who = Code(doc.subject.candidate.id[:12])
    return f"{doc.op.name}: {doc.subject.state.upper()}: candidate ", who, *([how] if how else [])


def paragraph(doc: Document) -> Pieces:
    """() where nothing was proposed."""
    return SAY[doc.subject.state](doc, doc.subject) if doc.subject else ()


def findings(entry: Entry | None) -> list[str]:
    """The most informative ones, a line each."""
    failed = entry.verdict.failed if entry else None
    if failed is None or failed.status is not Status.FAIL:
        return []
    return [f.line for f in of_failure(failed).findings[:MOST_FOUND]]


def _promotable(doc: Document, entry: Entry) -> Pieces:
    evidence = entry.evidence
    labels = list(envelope(evidence.points).values()) if evidence else []
    where = f" on {cut(evidence.environment.gpu, MESSAGE)} ({evidence.arch})" if evidence else ""
    said = f"All four gates passed{where}: {labels.count('win')} points win, {labels.count('tie')} tie"
    trust: Pieces = ()
    if entry.trust != OWN_KEY:
        trust = (" ", Strong("The evidence is self-reported: it promotes only with --trust."))
    return f"{said}, worst upper bound {entry.ratio:.3f} of the best baseline.", *trust, f" {counts(doc)}"


def _staged(doc: Document, entry: Entry) -> Pieces:
    waiting = [r.gate for r in entry.results if r.status is Status.SKIP or r.interpreted]
    builds = entry.sound_builds
    archs = ", ".join(dict.fromkeys(b.problem.arch for b in builds))
    numbers = entry.result(NUMERIC)
    right = " Its numbers are right in the PTX interpreter." if numbers and numbers.interpreted else ""
    said = (
        f"Everything that can be checked without a GPU passed.{right} It was built and audited at {len(builds)} points"
    )
    return f"{said} ({archs}). ", Strong(f"Not proven yet: {', '.join(waiting)}"), f": a GPU has to say. {counts(doc)}"


def _failed(doc: Document, entry: Entry) -> Pieces:
    failed = entry.verdict.failed
    assert failed is not None  # that is what its state says
    blame = "The tool or the machine failed" if failed.status is Status.ERROR else "Refused"
    said = f": {cut(failed.message, MESSAGE)} {counts(doc)}"
    return f"{blame} at {failed.gate}: ", Code(failed.code), said


def _unfinished(doc: Document, entry: Entry) -> Pieces:
    pieces: list[str] = ["No candidate came to a verdict about all that can be checked here. "]
    for number, r in enumerate(entry.results):
        pieces += ["; " if number else "", Code(r.code), f": {cut(r.message, MESSAGE)}"]
    return *pieces, f" {counts(doc)}"


SAY = {
    "promotable": _promotable,
    "staged": _staged,
    "failed": _failed,
    "error": _failed,
    "not chosen": _unfinished,
    "unfinished": _unfinished,
}
