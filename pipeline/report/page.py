"""One page about a kernel as HTML: of a run's best candidate, or of a promotion of a kernel set.

    of_run(document, before) -> str                   before: the champion that it would follow, or None
    of_promotion(kernels, promotion, op, stale) -> str

Not covered: the page over all kernels (`catalogue`), how HTML is made (`rendering`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from kgen.contract.op import Op
from kgen.records import BuildRecord, Candidate, Origin, Promotion
from kgen.records.envelope import HEADLINE
from kgen.report import background, facts, heat, judged, lineage, plots, sources, verdict
from kgen.report.document import Document, Entry
from kgen.report.plain import Cell, Code, Pieces, Table, pairs
from kgen.report.rendering import render
from kgen.report.sections import compared
from kgen.store.kernelset import KernelSet

LEGEND = (
    ("h1", "≤ 0.60"),
    ("h2", "≤ 0.75"),
    ("h3", "≤ 0.90"),
    ("h4", "≤ 1.00 win"),
    ("h5", "≤ 1.03 tie"),
    ("h6", "above: left"),
)
STOCK = "None: the stock op serves there."
LOG = 20_000  # characters of a log


@dataclass(frozen=True)
class Before:
    """The champion that a kernel follows."""

    candidate: str
    source: str
    said: str


@dataclass(frozen=True)
class Models:
    distances: Table
    answers: Table
    departures: Table
    mutants: tuple[tuple[str, str, bool, str], ...]
    beside: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """What the template shows; empty parts are left out."""

    op_name: str
    title: Pieces
    state: str
    paragraph: Pieces
    provenance: Table
    reproduce: str
    next_command: str = ""
    up: str = ""
    history: str = ""
    entry: Entry | None = None
    gates: Table = field(default_factory=pairs)
    findings: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    numbers: Table = field(default_factory=pairs)
    compared: str = ""
    errors: Sequence[plots.Picture] = ()
    models: Models | None = None
    maps: Sequence[heat.HeatMap] = ()
    legend: Sequence[tuple[str, str]] = LEGEND
    roofline: plots.Picture | None = None
    times: Sequence[tuple[str, Table]] = ()
    built: Table = field(default_factory=pairs)
    mutants_built: Mapping[str, str] = field(default_factory=dict)
    source: Sequence[Markup] = ()
    before: Before | None = None
    nothing_before: str = STOCK
    difference: Sequence[sources.DiffRow] = ()
    removed: int = 0
    added: int = 0
    candidates: Table = field(default_factory=pairs)
    counts: str = ""
    branches: Sequence[lineage.Branch] = ()
    decisions: Sequence[str] = ()
    environment: Table = field(default_factory=pairs)
    objects: Table = field(default_factory=pairs)
    logs: Sequence[tuple[str, str]] = ()

    @property
    def sections(self) -> list[tuple[str, str]]:
        """(id, title) of those that are there, in order."""
        known: tuple[tuple[str, str, object], ...] = (
            ("gates", "Gates", self.entry),
            ("numbers", "Numbers", self.rows),
            ("model", "In the model", self.models),
            ("speed", "Speed", self.maps),
            ("built", "Built", self.built and self.entry),
            ("source", "Source", self.entry),
            ("difference", "Difference", self.entry),
            ("candidates", "Candidates", self.candidates),
            ("lineage", "Lineage", self.candidates),
            ("environment", "Environment", self.entry and self.environment),
            ("provenance", "Provenance", True),
            ("reproduce", "Reproduce", True),
            ("logs", "Logs", self.logs),
        )
        return [(name, title) for name, title, there in known if there]


def of_run(doc: Document, before: Before | None = None, nothing_before: str = STOCK) -> str:
    """The page of a run, about its subject."""
    found = lineage.nodes(doc)
    parts = _about(doc.subject, doc.op, before) if doc.subject else {}
    note = "" if facts.costs_measured(doc) else f" {background.COST}"
    page = Page(
        op_name=doc.op.name,
        title=verdict.title(doc),
        state=doc.subject.state if doc.subject else "unfinished",
        paragraph=verdict.paragraph(doc),
        next_command=doc.next_command,
        provenance=facts.provenance(doc),
        reproduce=facts.reproduce(doc),
        findings=verdict.findings(doc.subject),
        candidates=facts.candidates(doc),
        counts=f"{facts.counts(doc)}{note}",
        branches=lineage.roots(found),
        decisions=lineage.decision_lines(doc.plans),
        nothing_before=nothing_before,
        logs=_logs(doc),
        **parts,
    )
    return render("report.html", page_title=f"{doc.op.name}: {page.state}", page=page)


def of_promotion(
    kernels: KernelSet, promotion: Promotion, op: Op | None, stale: str, before: Before | None, up: str, history: str
) -> str:
    """The page of a promoted kernel, from the set alone. Raises IntegrityError, StoreError."""
    entry = promoted_entry(kernels, promotion)
    how = judged.routing_of(op, entry.results)
    labels = list(promotion.labels.values())
    said = f"#{promotion.seq}, promoted {promotion.promoted} for {promotion.arch}: {labels.count('win')} points win,"
    said += f" {labels.count('tie')} tie; evidence {promotion.trust}. {f'Stale: {stale}.' if stale else ''}"
    rows: list[tuple[str, Cell]] = [
        ("promotion", f"#{promotion.seq}, {promotion.promoted}"),
        ("run", Code(promotion.run)),
        ("op contract", Code(promotion.op_contract)),
        ("gate contract", str(promotion.gate_contract)),
        *(row for row in facts.made_how(entry) if row[0] != "made by"),
        ("source", Code(promotion.source_sha256)),
        ("evidence file", Code(promotion.evidence_sha256)),
    ]
    page = Page(
        op_name=promotion.op,
        title=(f"{promotion.op}: ", Code(promotion.candidate[:12]), *([f"; {how}"] if how else [])),
        state="stale" if stale else "promoted",
        paragraph=(said,),
        provenance=pairs(*rows, limit=400),
        reproduce="kgen verify          # bytes, evidence, and the objects rebuilt from source\n"
        "kgen verify --full   # on a GPU: every gate again",
        up=up,
        history=history,
        **_about(entry, op, before, judged.KEPT),
    )
    return render("report.html", page_title=f"{promotion.op} {promotion.candidate[:12]}", page=page)


def promoted_entry(kernels: KernelSet, promotion: Promotion) -> Entry:
    """What a set holds of a kernel, as a run would: the compile gate's result and the origin stay with the run."""
    evidence = kernels.evidence(promotion).evidence
    return Entry(
        folder="",
        number=promotion.seq,
        candidate=Candidate(promotion.op, kernels.source(promotion), Origin("promoted")),
        results=evidence.results,
        judged=True,
        quick=None,
        ranked=None,
        rank=0,
        builds=kernels.builds(promotion),
        evidence=evidence,
        trust=promotion.trust,
    )


def _about(entry: Entry, op: Op | None, before: Before | None, missing: str = "not run") -> dict[str, Any]:
    """The parts of a page that are about one candidate."""
    points = entry.evidence.points if entry.evidence else ()
    rows, models = judged.numeric_rows(entry), judged.models(entry)
    rows_of_diff = sources.difference(before.source, entry.candidate.source) if before else ()
    removed, added = sources.counted(rows_of_diff)
    columns = sorted({p.column for p in points}, key=lambda name: (name != HEADLINE, name))
    builds: Sequence[BuildRecord] = entry.sound_builds
    return {
        "entry": entry,
        "gates": judged.gates(entry, missing),
        "rows": rows,
        "numbers": judged.numbers(rows),
        "compared": compared(rows) if rows else "",
        "errors": plots.errors(rows),
        "models": _models(entry, models) if models else None,
        "maps": heat.maps(points),
        "roofline": plots.roofline(op, points),
        "times": [(name, judged.times(p for p in points if p.column == name)) for name in columns],
        "built": facts.built(builds),
        "mutants_built": facts.mutants_built(entry),
        "source": sources.lines(entry.candidate.source),
        "before": before,
        "difference": rows_of_diff,
        "removed": removed,
        "added": added,
        "environment": facts.environment(entry),
        "objects": facts.objects(builds),
    }


def _models(entry: Entry, found: Mapping[str, Any]) -> Models:
    tables = (judged.distances(found), judged.answers(found), judged.departures(found))
    return Models(*tables, judged.mutants(entry), judged.beside(entry))


def _logs(doc: Document) -> list[tuple[str, str]]:
    """(what, whole message) of candidates that failed."""
    return [
        (f"{e.number}: {e.candidate.id[:12]} {failed.gate} {failed.code}", failed.message[:LOG])
        for e in doc.entries
        if (failed := e.verdict.failed) is not None
    ]
