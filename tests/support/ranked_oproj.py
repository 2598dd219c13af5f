"""Candidates of ranked_oproj_allreduce_residual at small dims, as support.ranked_run builds, runs and judges any."""

from pathlib import Path

from support import ranked_run
from support.ranked_run import Ranked, execute

from kgen.ops.ranked_oproj_allreduce_residual import RankedOprojAllreduceResidual

OP = RankedOprojAllreduceResidual()
FAMILIES = tuple(f.name for f in OP.families)

__all__ = ["FAMILIES", "built", "execute"]


def built(source: str, ranks: int, tokens: int, cache: Path, variant: str = "delta", dims: str = "nano") -> Ranked:
    return ranked_run.built(OP, source, ranks, tokens, cache, dims, variant=variant)
