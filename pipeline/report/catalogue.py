"""A folder of pages over a whole kernel set: all ops, the champions of each op, each promoted kernel.

    site(kernels, ops, current) -> {"index.html": ..., "<op>.html": ..., "<op>-<id12>-<seq>.html": ...}

The same set gives the same bytes. Not covered: writing them (the command).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kgen.contract.op import Op
from kgen.promotion.freshness import Current, stale
from kgen.records import Manifest, PerfPoint, Promotion
from kgen.records.envelope import HEADLINE
from kgen.report.page import Before, of_promotion
from kgen.report.plots import Picture, gains_picture
from kgen.report.rendering import render
from kgen.store.errors import IntegrityError
from kgen.store.kernelset import MANIFEST, KernelSet, parse_problem

TOKENS = (1, 8, 64)
HEAD = ("op", "state", "arch", "kernel", "points", "ties")
HISTORY = ("#", "when", "event", "arch", "kernel", "points", "serves now", "gain", "evidence", "note")
Gains = tuple[float, float] | None


@dataclass(frozen=True)
class Row:
    """An op on an arch, or an op that nothing serves. `numbers`: points, ties among them, gains at TOKENS, in words."""

    op: str
    title: str
    state: str  # promoted, stale or stock
    arch: str
    candidate: str
    page: str
    history: str
    numbers: tuple[str, ...]
    trust: str
    promoted: str


@dataclass(frozen=True)
class Catalogue:
    said: str
    head: tuple[str, ...]
    right: tuple[int, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Event:
    """One line of an op's history."""

    seq: str
    when: str
    event: str
    arch: str
    candidate: str
    page: str
    points: str
    serves: str
    gains: str
    trust: str
    note: str


@dataclass(frozen=True)
class History:
    op: str
    title: str
    head: tuple[str, ...]
    right: tuple[int, ...]
    rows: tuple[Event, ...]
    picture: Picture | None


def site(kernels: KernelSet, ops: Mapping[str, Op], current: Current) -> dict[str, str]:
    """Every file by name. Raises IntegrityError for a damaged set, StoreError for an unreadable one."""
    manifest = kernels.manifest()
    points = {p.seq: kernels.evidence(p).evidence.points for p in manifest.promotions}
    files = {"index.html": render("catalogue.html", page_title="Kernels", c=_catalogue(manifest, ops, current, points))}
    for op in dict.fromkeys(p.op for p in manifest.promotions):
        made = _history(op, manifest, ops, current, points)
        files[f"{op}.html"] = render("history.html", page_title=f"{op}: champions", h=made)
    for p in manifest.promotions:
        files[page_name(p)] = of_promotion(
            kernels, p, ops.get(p.op), stale(p, current), before(kernels, manifest, p), "index.html", f"{p.op}.html"
        )
    if strange := [name for name in files if "/" in name or "\\" in name]:
        raise IntegrityError(f"{kernels.root / MANIFEST} names what is no part of a file's name: {strange[0]!r:.120}")
    return files


def page_name(promotion: Promotion) -> str:
    return f"{promotion.op}-{promotion.candidate[:12]}-{promotion.seq}.html"


def before(kernels: KernelSet, manifest: Manifest, promotion: Promotion) -> Before | None:
    """The newest of the champions that it followed at its points; None: the stock op."""
    found = [p for seq in sorted({*promotion.previous.values()}) if (p := manifest.promotion(seq)) is not None]
    return champion(kernels, found[-1]) if found else None


def champion(kernels: KernelSet, promotion: Promotion) -> Before:
    said = f"#{promotion.seq} of {promotion.promoted}"
    return Before(promotion.candidate, kernels.source(promotion), said)


def serving(kernels: KernelSet, op: str, archs: Collection[str]) -> Before | None:
    """The newest promotion that serves a point of this op on one of these archs; None where the stock op serves all."""
    manifest = kernels.manifest()
    found = [p for p in manifest.promotions if p.op == op and p.arch in archs and _served(manifest, p)]
    return champion(kernels, found[-1]) if found else None


def _catalogue(
    manifest: Manifest, ops: Mapping[str, Op], current: Current, points: Mapping[int, tuple[PerfPoint, ...]]
) -> Catalogue:
    rows: list[Row] = []
    for name in sorted({*ops, *(p.op for p in manifest.promotions)}):
        serving = [p for p in manifest.promotions if p.op == name and _served(manifest, p)]
        title = ops[name].title if name in ops else "not an op of this kgen"
        history = f"{name}.html" if any(p.op == name for p in manifest.promotions) else ""
        rows += [_row(p, title, manifest, ops.get(name), current, points[p.seq]) for p in serving]
        if not serving:
            empty = ("–",) * (2 + len(TOKENS))
            rows.append(Row(name, title, "stock", "", "", "", history, empty, "", ""))
    served = len({r.op for r in rows if r.state != "stock"})
    said = f"{served} of {len({r.op for r in rows})} ops have a promoted kernel; the others run the stock op."
    head = (*HEAD, *(f"gain at {n}" for n in TOKENS), "evidence", "promoted")
    return Catalogue(said, head, tuple(range(4, 6 + len(TOKENS))), tuple(rows))


def _served(manifest: Manifest, promotion: Promotion) -> set[str]:
    return {key for key, seq in manifest.champions.items() if seq == promotion.seq}


def _row(
    p: Promotion, title: str, manifest: Manifest, op: Op | None, current: Current, points: tuple[PerfPoint, ...]
) -> Row:
    keys = _served(manifest, p)
    labels = [p.labels[key] for key in keys]
    dims = next((d for d in (op.pack.served if op else ()) if any(parse_problem(k).dims == d for k in keys)), "")
    gains = tuple(_gain(points, keys, dims, tokens) for tokens in TOKENS)
    numbers = (str(len(keys)), str(labels.count("tie")), *gains)
    state = "stale" if stale(p, current) else "promoted"
    day = p.promoted.split("T")[0]
    return Row(p.op, title, state, p.arch, p.candidate, page_name(p), f"{p.op}.html", numbers, p.trust, day)


def _gain(points: tuple[PerfPoint, ...], keys: set[str], dims: str, tokens: int) -> str:
    """Of the first point there with typical inputs."""
    for p in points:
        here = p.problem in keys and p.column == HEADLINE and not p.scenario and p.ratio > 0
        if here and p.tokens == tokens and parse_problem(p.problem).dims == dims:
            return f"{1 / p.ratio:.2f}×"
    return "–"


def gains_of(points: tuple[PerfPoint, ...], keys: set[str]) -> Gains:
    """The least and the greatest gain over points with typical inputs."""
    found = [
        1 / p.ratio for p in points if p.problem in keys and p.column == HEADLINE and not p.scenario and p.ratio > 0
    ]
    return (min(found), max(found)) if found else None


def _history(
    op: str, manifest: Manifest, ops: Mapping[str, Op], current: Current, points: Mapping[int, tuple[PerfPoint, ...]]
) -> History:
    by_seq = {str(p.seq): p for p in manifest.promotions if p.op == op}
    events, spans = [], []
    for line in reversed([e for e in manifest.history if e.get("op") == op]):
        p = by_seq.get(line.get("promotion", ""))
        if p is None:
            continue
        gains = gains_of(points[p.seq], set(p.objects))
        promoting = line.get("event") == "promote"
        if gains and promoting:
            spans.append((f"#{p.seq} {p.arch}", *gains))
        events.append(
            Event(
                seq=line.get("seq", ""),
                when=line.get("when", ""),
                event="promoted" if promoting else f"{line.get('event', '')} of #{p.seq}",
                arch=p.arch,
                candidate=p.candidate,
                page=page_name(p),
                points=str(len(p.objects)),
                serves=str(len(_served(manifest, p))),
                gains=f"{gains[0]:.2f}–{gains[1]:.2f}×" if gains else "–",
                trust=p.trust,
                note=f"stale: {stale(p, current)}" if stale(p, current) else "",
            )
        )
    title = ops[op].title if op in ops else ""
    return History(op, title, HISTORY, (0, 5, 6, 7), tuple(events), gains_picture(spans[::-1]))
