"""dense_mlp: the dense MLP of the first layer, this rank's slice: gate_up GEMM, SiTU, down GEMM (partial sum).

    gu = bf16(m @ w_gate_up.T);  h = bf16(SiTU(gate, up));  y = bf16(h @ w_down.T)

The same function as moe_shared (formulas, input families, stock and references are that op's) at 33792 / T columns:
4224 (TP8), 2112 (TP16), 512 (nano). K of the down GEMM is the checkpoint's: 2112 is a multiple of 64 and not of 128,
and nothing is padded. Accumulation is float32 or better. One hard rule more, as in kgen.ops.projection:

    |y - want| <= ulp(max(|want|, rms of the row)) + K 2^-24 sum_k |h_k w_k| + 2^-5 sqrt(sum_k (h_k w_k)^2)

`want` is the float64 product with the rounded h. The last term is what other roundings of gate, up and h (bf16: 2^-8
each, up to eight of them) can do to a sum of independent terms. A zero row gives zeros.
Not covered: the sum over ranks.
"""

from typing import ClassVar

import torch

from kgen.contract.op import Values
from kgen.contract.quant import round_bf16
from kgen.ops import moe_shared, projection
from kgen.ops.moe_shared import situ
from kgen.ops.pack import HIDDEN
from kgen.records import Problem

WIDTH = {"k3-tp8": 33792 // 8, "k3-tp16": 33792 // 16, "nano": 512}  # this rank's slice
HIDDEN_ERROR = 2.0**-5  # relative error of h that the element rule forgives


class DenseMlp(moe_shared.MoeShared):
    name: ClassVar = "dense_mlp"
    title: ClassVar = "dense MLP: gate_up, SiTU, down (partial sum of this rank)"
    doc: ClassVar = __doc__ or ""
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "width": WIDTH[d], "width2": 2 * WIDTH[d]} for d in HIDDEN}
    floor: ClassVar = 5e-3  # a kernel that keeps gate, up and h in float32 is 4.4e-3 away at unit normal rows
    shared: ClassVar = (moe_shared, projection)
    sweep: ClassVar = {**projection.Projection.sweep, "L2": "cold and chained"}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The element rule of the down GEMM, with room for other roundings of h."""
        m, w_gate_up, w_down = (projection.tensor(values, k) for k in ("m", "w_gate_up", "w_down"))
        gate, up = round_bf16(projection.product(m, w_gate_up)).chunk(2, dim=-1)
        h = round_bf16(situ(gate, up))
        want = projection.product(h, w_down)
        allowed = projection.element_allowance(want, projection.product_sizes(h, w_down), h.shape[1])
        allowed += HIDDEN_ERROR * projection.product(h.square(), w_down.double().square()).sqrt()
        return projection.element_breaches("y", got["y"], want, allowed)
