"""mla_out_gate: from the attended latent to the gated values: W_UV per head, then the sigmoid gate.

    val = bf16(lat[h] @ w_uv[h])                 [tokens, heads, 128]
    y   = bf16(val * sigmoid(p[:, gate]))        gate: the last `width` columns of the projected row
    lengths[t] = 0: y[t] is zero, whatever lat holds there (an attention core need not write such rows)

`lengths` has one entry a token, the rows that it sees: so one kernel serves every number of new tokens, and a caller
with q tokens a request repeats the request's length q times. Accumulation is float32 or better.
Source: vLLM 0.33's Kimi K3 attention (absorbed MLA without rotation). Not covered: several shards of the context
(mla_dcp_merge).
"""

from typing import ClassVar

import torch

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import mla_math
from kgen.ops.mla_math import LATENT, SIZES, VALUE, Compile, fused, rounding, stock_value, tensor, value_gate
from kgen.ops.pack import PACK
from kgen.records import Problem


def _gate(value: torch.Tensor, p: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    gated = value.float() * torch.sigmoid(p[:, p.shape[1] - value.shape[1] :].float())
    return torch.where(lengths[:, None] > 0, gated, 0.0).to(torch.bfloat16)


class MlaOutGate(Op):
    name: ClassVar = "mla_out_gate"
    title: ClassVar = "MLA values: W_UV, sigmoid gate"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    shared: ClassVar = (mla_math,)
    dims: ClassVar = SIZES
    tensors: ClassVar = (
        TensorSpec("lat", "bf16", ("tokens", "heads", "latent"), Role.IN, "attended latent rows"),
        TensorSpec("w_uv", "bf16", ("heads", "latent", "value"), Role.WEIGHT, "value projection of each head"),
        TensorSpec("p", "bf16", ("tokens", "in_width"), Role.IN, "projected row; columns from gate_at on are read"),
        TensorSpec("lengths", "i32", ("tokens",), Role.IN, "rows that the token sees; 0: y is zero", padding=0),
        TensorSpec("y", "bf16", ("tokens", "width"), Role.OUT, "gated values, head by head"),
    )
    families: ClassVar = (
        Family("normal", "unit normal rows, weights N(0, 1/K), one token in eight of length 0"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero"),
        Family("tiny", "rows times 2^-40"),
        Family("large", "rows times 2^10: the gate saturates"),
        Family("signed_zero", "half of the values are -0"),
        Family("gate_extremes", "gates of up to some hundred, in both signs"),
        Family("unwritten", "every other length is 0, and NaN in those latent rows"),
        Family("empty", "every length is 0, and all latent rows are NaN"),
    )
    floor: ClassVar = 3e-3
    mutable_inputs: ClassVar = ("lat", "p")
    sweep: ClassVar = {"tokens": "1-8, 16, 32, 64 and 12, 24, 48 padded"}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        s, gen = self.sizes(problem), generator(seed, device)
        lat = rows((s["tokens"] * s["heads"], LATENT), family, gen).view(s["tokens"], s["heads"], LATENT)
        p = rows((s["tokens"], s["in_width"]), family, gen)
        w_uv = normal((s["heads"], LATENT, VALUE), gen, LATENT**-0.5)
        lengths = 1 + torch.randint(1000, (s["tokens"],), generator=gen, device=gen.device)
        order = torch.randperm(s["tokens"], generator=gen, device=gen.device)
        if family == "unwritten":
            lengths[order % 2 == 0] = 0
        elif family == "empty":
            lengths[:] = 0
        else:
            lengths[order % 8 == 7] = 0
        if family in ("unwritten", "empty"):
            lat[lengths == 0] = torch.nan
        if family == "gate_extremes":
            p[:, s["gate_at"] :] *= 100.0
        values = {k: v.to(torch.bfloat16) for k, v in (("lat", lat), ("w_uv", w_uv), ("p", p))}
        return {**values, "lengths": lengths.to(torch.int32)}

    def stock(self, problem: Problem, compile: Compile = None) -> StockFn:
        gate = fused(_gate, compile)

        def run(values: Values) -> dict[str, torch.Tensor]:
            value = stock_value(tensor(values, "lat"), tensor(values, "w_uv"))
            return {"y": gate(value, tensor(values, "p"), tensor(values, "lengths"))}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        lat, w_uv, p = (tensor(values, n).double() for n in ("lat", "w_uv", "p"))
        y = value_gate(lat, w_uv, p[:, self.sizes(problem)["gate_at"] :], rounding(rounded))
        return {"y": y.masked_fill(tensor(values, "lengths")[:, None] == 0, 0.0)}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """y of a token of length 0 is exactly 0."""
        empty = got["y"][tensor(values, "lengths") == 0]
        return ["y of a token of length 0 is not zero"] if bool((empty != 0).any()) else []

    def cost(self, problem: Problem) -> Cost:
        return self._cost(problem, problem.tokens)

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        return self._cost(problem, int((tensor(values, "lengths") > 0).sum()))

    def _cost(self, problem: Problem, live: int) -> Cost:
        """`live`: tokens whose rows must be read; all are written."""
        s = self.sizes(problem)
        weights = s["heads"] * LATENT * VALUE
        reads = live * (s["heads"] * LATENT + s["width"])
        return Cost(bytes=2 * (weights + reads + s["tokens"] * s["width"]), flops=2 * live * weights)
