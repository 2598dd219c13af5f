"""What serves each point of a set now, and which promotions need to be measured again."""

from collections.abc import Iterable
from dataclasses import dataclass

from kgen.promotion.freshness import Current, stale
from kgen.records import Manifest
from kgen.store.kernelset import parse_problem


@dataclass(frozen=True)
class StatusRow:
    """One served point. `stale` is empty for fresh evidence, else the reason."""

    op: str
    arch: str
    dims: str
    tokens: int
    axes: str
    seq: int
    candidate: str
    label: str
    trust: str
    promoted: str
    run: str
    stale: str


def status(manifest: Manifest, current: Current) -> tuple[StatusRow, ...]:
    """A row for each point that has a champion, ordered by op, arch, dims, axes and tokens."""
    rows = []
    for key, seq in manifest.champions.items():
        problem, champion = parse_problem(key), manifest.promotion(seq)
        if champion is None:
            continue
        rows.append(
            StatusRow(
                op=problem.op,
                arch=problem.arch,
                dims=problem.dims,
                tokens=problem.tokens,
                axes=", ".join(f"{k}={v}" for k, v in sorted(problem.axes.items())),
                seq=seq,
                candidate=champion.candidate,
                label=champion.labels[key],
                trust=champion.trust,
                promoted=champion.promoted,
                run=champion.run,
                stale=stale(champion, current),
            )
        )
    return tuple(sorted(rows, key=lambda r: (r.op, r.arch, r.dims, r.axes, r.tokens)))


@dataclass(frozen=True)
class StalePromotion:
    """A promotion that serves `points` points with evidence of older rules; `reason` is one line."""

    seq: int
    op: str
    arch: str
    candidate: str
    run: str
    points: int
    reason: str


def stale_promotions(rows: Iterable[StatusRow]) -> tuple[StalePromotion, ...]:
    """Each promotion of these rows whose evidence is stale, once."""
    found: dict[int, list[StatusRow]] = {}
    for row in (r for r in rows if r.stale):
        found.setdefault(row.seq, []).append(row)
    return tuple(
        StalePromotion(seq, r[0].op, r[0].arch, r[0].candidate, r[0].run, len(r), r[0].stale)
        for seq, r in sorted(found.items())
    )
