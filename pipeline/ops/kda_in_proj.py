"""kda_in_proj: the input projection of a KDA layer, this rank's heads: p = bf16(x @ w_in.T).

Rows of w_in, and so columns of p, with H local heads and d = 128 H:

    q[d]  k[d]  v[d]  g[d]  f_a[128]  beta[H]  padding up to a multiple of 16

N = 6288 (TP8, H = 12), 3216 (TP16, H = 6), 1168 (nano, H = 2). f_a is the same on every rank. The padding rows exist
in the weight and the op knows nothing about them: their columns of p are x @ w_in as any other, zero where a
checkpoint's loader left zeros, and they are written. Source: the row layout is vLLM 0.33's `in_proj_qkvgfab`.
Not covered: what follows (convolution, gates, recurrence).
"""

from typing import ClassVar

from kgen.contract.op import Family, Values
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import projection
from kgen.ops.pack import HIDDEN
from kgen.records import Problem

HEADS = {"k3-tp8": 96 // 8, "k3-tp16": 96 // 16, "nano": 2}  # local to a rank
HEAD_DIM = 128
GATE_RANK = 128  # f_a
ROW_MULTIPLE = 16


def used_rows(heads: int) -> int:
    """Rows of w_in before the padding."""
    return 4 * HEAD_DIM * heads + GATE_RANK + heads


def all_rows(heads: int) -> int:
    """Rows of w_in, padding included."""
    return -(-used_rows(heads) // ROW_MULTIPLE) * ROW_MULTIPLE


class KdaInProj(projection.Projection):
    name: ClassVar = "kda_in_proj"
    title: ClassVar = "KDA input projection: q, k, v, gate, low-rank gate, beta"
    doc: ClassVar = __doc__ or ""
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "heads": h, "width": all_rows(h)} for d, h in HEADS.items()}
    tensors: ClassVar = (
        TensorSpec("x", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows"),
        TensorSpec("w_in", "bf16", ("width", "hidden"), Role.WEIGHT, "q, k, v, g, f_a, beta, padding; K contiguous"),
        TensorSpec("p", "bf16", ("tokens", "width"), Role.OUT, "projected rows, padding columns included"),
    )
    families: ClassVar = (
        *projection.FAMILIES,
        Family("zero_padding", "padding rows of the weight zero, as loaded (drawn as the others otherwise)"),
    )
    shared: ClassVar = (projection,)
    mutable_inputs: ClassVar = ("x",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        values = super().inputs(problem, family, seed, device)
        if family == "zero_padding":
            projection.tensor(values, "w_in")[used_rows(self.sizes(problem)["heads"]) :] = 0.0
        return values
