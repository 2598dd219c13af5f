"""Which kernels of a set serve an op now, and how much faster its evidence says they are.

    champions(kernels, current) -> op -> one Champion for each promotion that serves points

The speed-up is the best baseline's time over the kernel's, in the headline column of the perf sweep, at true token
counts of the points it serves. Not covered: what to do about stale evidence (kgen status).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.promotion.freshness import Current, stale
from kgen.records.envelope import HEADLINE
from kgen.store.kernelset import KernelSet


@dataclass(frozen=True)
class Champion:
    """`gains`: least and greatest speed-up over the served points, None where the evidence times none of them.
    `stale`: why the evidence is of other rules than today's, "" where it is not.
    """

    arch: str
    seq: int
    candidate: str
    points: int
    gains: tuple[float, float] | None
    stale: str


def champions(kernels: KernelSet, current: Current) -> Mapping[str, tuple[Champion, ...]]:
    """By op, in order of arch and promotion. Raises IntegrityError for a damaged set, StoreError for an unreadable."""
    manifest, found = kernels.manifest(), dict[str, list[Champion]]()
    for promotion in sorted(manifest.promotions, key=lambda p: (p.arch, p.seq)):
        keys = {key for key, seq in manifest.champions.items() if seq == promotion.seq}
        if keys:
            timed = kernels.evidence(promotion).evidence.points
            plain = [p for p in timed if p.problem in keys and p.column == HEADLINE and not p.scenario]
            gains = [1 / p.ratio for p in plain if p.ratio > 0]
            ends = (min(gains), max(gains)) if gains else None
            old = stale(promotion, current)
            made = Champion(promotion.arch, promotion.seq, promotion.candidate, len(keys), ends, old)
            found.setdefault(promotion.op, []).append(made)
    return {op: tuple(made) for op, made in found.items()}
