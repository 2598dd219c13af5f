"""Which kernels are taken apart, with which variants, at which points: a row a candidate.

source(row) -> the candidate's text, as it is committed or as its family renders it
points(row) -> the problems, default axes
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bounding import fused, projections, states
from bounding.variants import Variant

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, render
from kgen.records import Candidate, Origin, Problem

SET = Path(__file__).parents[2] / "generated_kernels"
ARCH, DIMS = "sm_90a", "k3-tp8"


@dataclass(frozen=True)
class Row:
    """`candidate`: the first 12 digits of its id."""

    op: str
    candidate: str
    tokens: tuple[int, ...]
    variants: tuple[Variant, ...]

    def at(self, tokens: int) -> tuple[Variant, ...]:
        """The variants that differ from the kernel at this count."""
        return tuple(v for v in self.variants if v.least <= tokens)


# in the order in which they are measured: what is furthest from its aim first
TABLE = (
    Row("kda_core", "c484225ea045", (64, 8, 1), states.KDA_CORE),
    Row("moe_experts", "5fcaf56028aa", (64, 1), fused.EXPERTS),
    Row("kda_in_proj", "e76647cd8cbc", (64, 8), projections.STREAM),
    Row("oproj_partial", "189422e2ed2f", (64,), projections.STREAM),
    Row("mla_in_proj", "3e038749ac43", (64,), projections.STREAM),
    Row("lm_head_argmax", "3e80b106864e", (32,), projections.HEAD_QUEUE),
    Row("lm_head_argmax", "d23f4edea098", (64,), projections.HEAD_STREAM),
    Row("dense_mlp", "e8c89249a54e", (64,), fused.TWO_STAGES),
    Row("moe_shared", "e56cafe5a884", (64, 1), fused.TWO_STAGES),
    Row("mla_q", "9fada89fb3d1", (64,), states.MLA_Q),
    Row("oproj_allreduce_residual", "bbb57705a4e3", (64,), fused.RESIDUAL),
    Row("moe_router", "cd7cd05963e8", (64,), fused.ROUTER),
    Row("moe_latent_down", "8a21ef05f25e", (64,), projections.STREAM),
    Row("oproj_partial", "90da64cc7b99", (16,), projections.SKINNY),
)


def source(row: Row) -> str:
    """Raises LookupError where neither the set nor the family has the candidate any more."""
    path = SET / row.op / f"{row.candidate}.py"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for values in FAMILIES[row.op].known:
        text = render(values)
        if Candidate(row.op, text, Origin("search")).id.startswith(row.candidate):
            return text
    raise LookupError(f"{row.op} {row.candidate} is neither in the set nor a known point of its family")


def points(row: Row) -> list[Problem]:
    op = REGISTRY.get(row.op)
    return [op.problem(DIMS, n, ARCH) for n in row.tokens]


def chosen(words: Sequence[str], most: int) -> list[Row]:
    """Rows of the ops or candidates that are named (all without a word), with `most` points each."""
    rows = [r for r in TABLE if not words or r.op in words or r.candidate in words]
    return [replace(r, tokens=r.tokens[:most]) for r in rows]
