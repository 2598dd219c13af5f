"""moe_shared: the shared expert of the MoE block, this rank's slice: gate_up GEMM, SiTU, down GEMM (partial sum).

    gu = bf16(m @ w_gate_up.T);  h = bf16(SiTU(gate, up));  y = bf16(h @ w_down.T)
    SiTU(g, u) = beta tanh(g / beta) sigmoid(g) * lambda tanh(u / lambda)

Accumulation is float32 or better. Source: the model's published config; vLLM 0.33 SituAndMul evaluates SiTU in
float32 from bf16 inputs and rounds once.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops.pack import HIDDEN, PACK, SHARED_WIDTH, SITU_BETA, SITU_LINEAR_BETA
from kgen.records import Problem


def situ(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """SiTU in the dtype of its inputs (float32 or float64)."""
    soft = SITU_BETA * torch.tanh(gate / SITU_BETA) * torch.sigmoid(gate)
    return soft * (SITU_LINEAR_BETA * torch.tanh(up / SITU_LINEAR_BETA))


def situ_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """bf16 [tokens, 2 width] (gate half, then up half) -> bf16 [tokens, width]; float32 inside."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return situ(gate, up).to(torch.bfloat16)


class MoeShared(Op):
    name: ClassVar = "moe_shared"
    title: ClassVar = "shared expert: gate_up, SiTU, down (partial sum of this rank)"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "width": SHARED_WIDTH[d], "width2": 2 * SHARED_WIDTH[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("m", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows"),
        TensorSpec("w_gate_up", "bf16", ("width2", "hidden"), Role.WEIGHT, "gate rows 0..width-1, then up rows"),
        TensorSpec("w_down", "bf16", ("hidden", "width"), Role.WEIGHT, "down projection, K contiguous"),
        TensorSpec("y", "bf16", ("tokens", "hidden"), Role.OUT, "partial sum of this rank"),
    )
    families: ClassVar = (
        Family("normal", "unit normal rows, weights N(0, 1/K)"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero"),
        Family("tiny", "rows times 2^-40: gate times up is 2^-80"),
        Family("large", "rows times 2^10: tanh saturates"),
        Family("signed_zero", "half of the values are -0"),
        Family("situ_extremes", "|gate| > 20 and |up| > 200 in both signs"),
    )
    floor: ClassVar = 4e-3  # two roundings and the down sum
    chain: ClassVar = ("y", "m")
    chain_family: ClassVar = "large"  # SiTU is quadratic near 0: unit rows would die out within ten calls
    mutable_inputs: ClassVar = ("m",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        gate_scale = 40.0 if family == "situ_extremes" else 1.0
        up_scale = 300.0 if family == "situ_extremes" else 1.0
        w_gate_up = normal((size["width2"], size["hidden"]), gen, size["hidden"] ** -0.5)
        w_gate_up[: size["width"]] *= gate_scale
        w_gate_up[size["width"] :] *= up_scale
        w_down = normal((size["hidden"], size["width"]), gen, size["width"] ** -0.5)
        m = rows((size["tokens"], size["hidden"]), family, gen)
        return {k: v.to(torch.bfloat16) for k, v in (("m", m), ("w_gate_up", w_gate_up), ("w_down", w_down))}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        activation = compile(situ_and_mul, dynamic=False) if compile else situ_and_mul

        def run(values: Values) -> dict[str, torch.Tensor]:
            h = activation(F.linear(values["m"], values["w_gate_up"]))  # type: ignore[arg-type]
            return {"y": F.linear(h, values["w_down"])}  # type: ignore[arg-type]

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        def r(x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.bfloat16).double() if rounded else x

        m, w_gate_up, w_down = (values[k].double() for k in ("m", "w_gate_up", "w_down"))  # type: ignore[union-attr]
        gate, up = r(m @ w_gate_up.T).chunk(2, dim=-1)
        return {"y": r(r(situ(gate, up)) @ w_down.T)}

    def cost(self, problem: Problem) -> Cost:
        s = self.sizes(problem)
        weights = 3 * s["width"] * s["hidden"]
        activations = s["tokens"] * 2 * s["hidden"]  # read m, write y; h need not leave L2
        return Cost(bytes=2 * (weights + activations), flops=2 * s["tokens"] * weights)
