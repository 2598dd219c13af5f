"""moe_router: which experts a token goes to and with what weight: logits, sigmoid, top k of the biased scores, renorm.

    logits = m @ w_router.T                               float32 accumulate, kept float32
    s      = sigmoid(logits)
    ids    = top k of s + bias, in descending order       ties: the lower id first; NaN ranks lowest
    w      = bf16(s[ids] scale / (sum s[ids] + 1e-20))    unbiased scores

`ids` must be those of the float64 reference wherever all gaps between neighbours among its ranks 1..k+1 exceed the
window of the declared class; no float32 sum can promise more. Classes: `exact` (an accurate sigmoid) has the window
1e-5, `fast` (hardware tanh) 1e-3. For every token, in float64 biased scores b:

    ids are in range and all different;
    no expert left out is more than the window above one returned;
    no slot is more than the window above a slot before it;
    true ties keep the lower id first and in. True ties are those that no order of summation can break: equal
      float32(s + bias) where s is exact (0.5 of an all-zero row, 1 of a logit of 40 or more, 0 and 1 of infinities),
      and NaN among NaN;
    w is within one bf16 ulp + 1e-5 of the float64 weights of the ids returned, plus what the class's own error of s
      (fast: 2.5e-4 absolute; exact: float32's smallest normal) makes of it. A NaN score returned makes all of w NaN;
    logits, where they are an output, are within 2^-18 sum_c |m_c w_c| of the float64 ones, inf and NaN where those are.

Source: noaux_tc routing with one group. bias is finite. Not covered: the sharded form, whose logits cross ranks; and
that all ranks agree, which follows from bit-identical inputs and repeatable sums.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.quant import round_bf16
from kgen.contract.rules import ByOp
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import dims_moe, router_rules
from kgen.ops.dims_moe import EXPERTS, TOP_K
from kgen.ops.pack import HIDDEN, PACK
from kgen.ops.router_rules import CLASSES, breaches, ranked, weights_of
from kgen.records import Problem

Compile = Callable[..., Callable[..., object]]


class MoeRouter(Op):
    name: ClassVar = "moe_router"
    title: ClassVar = "MoE router: logits, sigmoid, top k of biased scores, renormalised weights"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "experts": EXPERTS[d], "top_k": TOP_K[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("m", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows"),
        TensorSpec("w_router", "bf16", ("experts", "hidden"), Role.WEIGHT, "one row an expert"),
        TensorSpec("bias", "f32", ("experts",), Role.WEIGHT, "added to the scores for the choice only"),
        TensorSpec("ids", "i32", ("tokens", "top_k"), Role.OUT, "experts, best biased score first", rule=ByOp()),
        TensorSpec("w", "bf16", ("tokens", "top_k"), Role.OUT, "weight of each id", rule=ByOp()),
        TensorSpec(
            "logits", "f32", ("tokens", "experts"), Role.OUT, "router logits", only=("logits", ("yes",)), rule=ByOp()
        ),
    )
    scalars: ClassVar = (ScalarSpec("scale", "f32", "factor of the renormalised weights", 1.0, other=2.5),)
    axes: ClassVar = {"class": tuple(CLASSES), "logits": ("no", "yes")}
    families: ClassVar = (
        Family("normal", "unit normal rows, weights N(0, 1/K), bias N(0, 0.05)"),
        Family("clear", "bias 0, -0.4, -0.8, ... in random order: nearly every gap exceeds both windows"),
        Family("near_ties", "pairs of experts with equal rows and biases 1e-7 to 3e-3 apart"),
        Family("exact_ties", "groups of four experts with equal rows and biases; every other row zero"),
        Family("zero_rows", "every other row zero: the bias decides"),
        Family("saturated", "rows times 32, bias in steps of 0.05: scores of 0 and 1, true ties among many"),
        Family("outlier", "one channel in 256 times 30"),
        Family("large_bias", "bias N(0, 5): experts with small scores are chosen"),
        Family("not_finite", "an inf in one token, a NaN in another, an inf and a NaN in two experts' rows"),
    )
    floor: ClassVar = 4e-3  # one bf16 ulp; the hard rules judge
    shared: ClassVar = (router_rules, dims_moe)
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("m",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        tokens, hidden, experts = size["tokens"], size["hidden"], size["experts"]
        m = rows((tokens, hidden), "zero_rows" if family == "exact_ties" else family, gen)
        w_router = normal((experts, hidden), gen, hidden**-0.5)
        bias = normal((experts,), gen, 5.0 if family == "large_bias" else 0.05)
        if family == "clear":
            bias = -0.4 * torch.randperm(experts, generator=gen, device=gen.device).float()
        elif family == "near_ties":
            w_router[1::2] = w_router[0::2]
            apart = torch.rand((experts // 2,), generator=gen, device=gen.device) * 4.5 - 7
            bias[1::2] = bias[0::2] + 10.0**apart
        elif family == "exact_ties":
            w_router = w_router[: experts // 4].repeat(4, 1)
            bias = bias[: experts // 4].repeat(4)
        elif family == "saturated":
            m *= 32.0
            bias = torch.round(bias / 0.05) * 0.05
        elif family == "not_finite":
            m[0, 1] = torch.inf
            m[1:2, 2] = torch.nan
            w_router[1, 3], w_router[2, 4] = torch.inf, torch.nan
        bf16 = torch.bfloat16
        return {"m": m.to(bf16), "w_router": w_router.to(bf16), "bias": bias, "scale": 1.0}

    def stock(self, problem: Problem, compile: Compile | None = None) -> StockFn:
        top_k, with_logits = self.sizes(problem)["top_k"], problem.axes["logits"] == "yes"

        choose: Callable[..., Any] = compile(_choose, dynamic=False) if compile else _choose

        def run(values: Values) -> dict[str, torch.Tensor]:
            logits = _logits(values["m"], values["w_router"])  # type: ignore[arg-type]
            ids, w = choose(logits, values["bias"], values["scale"], top_k)
            return {"ids": ids, "w": w, **({"logits": logits} if with_logits else {})}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        m, w_router, bias = (values[n].double() for n in ("m", "w_router", "bias"))  # type: ignore[union-attr]
        logits = m @ w_router.T
        if rounded:
            logits = logits.float().double()
        scores = torch.sigmoid(logits)
        ids = ranked(scores + bias).indices[:, : self.sizes(problem)["top_k"]]
        w = weights_of(scores, ids, float(values["scale"]))
        found = {"ids": ids.to(torch.int32), "w": round_bf16(w) if rounded else w}
        return {**found, **({"logits": logits} if problem.axes["logits"] == "yes" else {})}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The rules on ids, w and logits that the contract's text lists for the declared class."""
        m, w_router, bias = (values[n] for n in ("m", "w_router", "bias"))
        chosen = CLASSES[problem.axes["class"]]
        return breaches(m, w_router, bias, float(values["scale"]), chosen, got)  # type: ignore[arg-type]

    def cost(self, problem: Problem) -> Cost:
        s = self.sizes(problem)
        weights = s["experts"] * s["hidden"]
        logits = 4 * s["experts"] if problem.axes["logits"] == "yes" else 0
        moved = s["tokens"] * (2 * s["hidden"] + s["top_k"] * (4 + 2) + logits)
        return Cost(bytes=2 * weights + 4 * s["experts"] + moved, flops=2 * s["tokens"] * weights)


def _logits(m: torch.Tensor, w_router: torch.Tensor) -> torch.Tensor:
    """float32 [tokens, experts] of bf16 operands."""
    if m.is_cuda:
        return torch.mm(m, w_router.T, out_dtype=torch.float32)
    return m.float() @ w_router.float().T


def _choose(logits: torch.Tensor, bias: torch.Tensor, scale: float, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids i32 and w bf16, both [tokens, top_k], from float32 logits."""
    scores = torch.sigmoid(logits)
    ids = ranked(scores + bias).indices[:, :top_k]
    return ids.to(torch.int32), weights_of(scores, ids, scale).to(torch.bfloat16)
