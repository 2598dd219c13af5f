"""oproj_partial: the output projection of an attention layer, this rank's heads: part = bf16(y @ w_o.T).

y [tokens, d], w_o [hidden, d] with d = 128 H: 1536 (TP8), 768 (TP16), 256 (nano). Both attention kinds use it. The
result is a partial sum, rounded to bf16 once; the sum over ranks comes later. Source: vLLM 0.33's `o_proj` without its
all-reduce. Not covered: that all-reduce and the residual.
"""

from typing import ClassVar

from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import projection
from kgen.ops.pack import HIDDEN

LOCAL = {"k3-tp8": 128 * 96 // 8, "k3-tp16": 128 * 96 // 16, "nano": 128 * 2}  # this rank's heads


class OprojPartial(projection.Projection):
    name: ClassVar = "oproj_partial"
    title: ClassVar = "attention output projection (partial sum of this rank)"
    doc: ClassVar = __doc__ or ""
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "local": LOCAL[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("y", "bf16", ("tokens", "local"), Role.IN, "gated attention rows of this rank's heads"),
        TensorSpec("w_o", "bf16", ("hidden", "local"), Role.WEIGHT, "output projection, K contiguous"),
        TensorSpec("part", "bf16", ("tokens", "hidden"), Role.OUT, "partial sum of this rank"),
    )
    shared: ClassVar = (projection,)
    mutable_inputs: ClassVar = ("y",)
