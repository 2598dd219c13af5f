"""attn_res: attention residuals: add the pending delta, optionally snapshot the row, mix sources, norm.

    p = bf16(prefix + delta);  prefix <- p;  if write_idx >= 0: blocks[:, write_idx] <- p
    V = [blocks[:, 0..nb-1], p]
    l_s = (sum_c V_s[c] w_norm[c] w_query[c]) * rsqrt(mean_c V_s[c]^2 + eps);  a = softmax(l)
    mix = sum_s a_s V_s;  out = bf16(mix * rsqrt(mean(mix^2) + eps_out) * w_out)

The `final` variant rounds mix to bf16 before the norm; `prefix_only` has no delta.
"""

from collections.abc import Callable
from typing import ClassVar

import torch

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops.pack import ATTN_RES_SLOTS, HIDDEN, PACK, RMS_EPS
from kgen.records import Problem

WITH_DELTA = ("delta", "final")


def _evaluate(values: Values, variant: str, rounded: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The formulas above in `dtype`. Returns out, prefix and blocks in `dtype`."""

    def r(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).to(dtype) if rounded else x

    t = {k: v.to(dtype) for k, v in values.items() if isinstance(v, torch.Tensor)}
    nb, write = int(values["nb"]), int(values["write_idx"])
    p = r(t["prefix"] + t["delta"]) if variant in WITH_DELTA else t["prefix"]
    blocks = t["blocks"].clone()
    sources = torch.cat([blocks[:, :nb], p[:, None]], dim=1)
    if write >= 0:
        blocks[:, write] = p
    scale = torch.rsqrt(sources.square().mean(-1) + float(values["eps"]))
    logits = (sources * (t["w_norm"] * t["w_query"])).sum(-1) * scale
    mix = (torch.softmax(logits, dim=1)[..., None] * sources).sum(1)
    if variant == "final":
        mix = r(mix)
    out = r(mix * torch.rsqrt(mix.square().mean(-1, keepdim=True) + float(values["eps_out"])) * t["w_out"])
    return {"out": out, "prefix": p, "blocks": blocks}


class AttnRes(Op):
    name: ClassVar = "attn_res"
    title: ClassVar = "attention residuals: delta add, block snapshot, mix, norm"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "slots": ATTN_RES_SLOTS[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("prefix", "bf16", ("tokens", "hidden"), Role.STATE, "running sum in this block", exact=True),
        TensorSpec("delta", "bf16", ("tokens", "hidden"), Role.IN, "pending addend", only=("variant", WITH_DELTA)),
        TensorSpec("blocks", "bf16", ("tokens", "slots", "hidden"), Role.STATE, "block snapshots", exact=True),
        TensorSpec("w_norm", "bf16", ("hidden",), Role.WEIGHT, "norm weights of the sources"),
        TensorSpec("w_query", "bf16", ("hidden",), Role.WEIGHT, "query vector"),
        TensorSpec("w_out", "bf16", ("hidden",), Role.WEIGHT, "norm weights of the result"),
        TensorSpec("out", "bf16", ("tokens", "hidden"), Role.OUT, "normed mix"),
    )
    scalars: ClassVar = (
        ScalarSpec("nb", "i32", "finished blocks to mix, 0..slots", 1, other=0),
        ScalarSpec("write_idx", "i32", "slot to snapshot into, -1: none", -1, other=0),
        ScalarSpec("eps", "f32", "added to the mean square of a source", RMS_EPS, other=1.0),
        ScalarSpec("eps_out", "f32", "added to the mean square of the mix", RMS_EPS, other=1.0),
    )
    axes: ClassVar = {"variant": ("delta", "prefix_only", "final")}
    families: ClassVar = (
        Family("normal", "unit normal rows, half of the slots used"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero"),
        Family("tiny", "rows times 2^-40"),
        Family("denormal", "rows times 2^-128: bf16 denormals"),
        Family("large", "rows times 2^10"),
        Family("no_blocks", "nb = 0: the mix is the row itself"),
        Family("all_blocks", "every slot mixed"),
        Family("write", "snapshot into the first free slot, which is not mixed in this call"),
        Family("growing", "64 steps on one state, rms growing 1 to 30", steps=64),
    )
    floor: ClassVar = 2.5e-3
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("prefix", "delta")

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        tokens, hidden, slots = size["tokens"], size["hidden"], size["slots"]
        values: Values = {
            "prefix": rows((tokens, hidden), family, gen),
            "blocks": rows((tokens * slots, hidden), family, gen).reshape(tokens, slots, hidden),
            "w_norm": 1 + normal((hidden,), gen, 0.25),
            "w_query": normal((hidden,), gen, 2 * hidden**-0.5),  # scores of a few units: no source drowns the others
            "w_out": 1 + normal((hidden,), gen, 0.1),
        }
        if problem.axes["variant"] in WITH_DELTA:
            values["delta"] = rows((tokens, hidden), family, gen)
        values = {k: v.to(torch.bfloat16) for k, v in values.items()}  # type: ignore[union-attr]
        nb = {"no_blocks": 0, "all_blocks": slots}.get(family, slots // 2)
        write = nb if family == "write" else -1
        return {**values, "nb": nb, "write_idx": write, "eps": RMS_EPS, "eps_out": RMS_EPS}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        variant = problem.axes["variant"]
        evaluate = compile(_evaluate, dynamic=False) if compile else _evaluate

        def run(values: Values) -> dict[str, torch.Tensor]:
            got = evaluate(values, variant, True, torch.float32)
            return {k: v.to(torch.bfloat16) for k, v in got.items()}  # type: ignore[attr-defined]

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        return _evaluate(values, problem.axes["variant"], rounded, torch.float64)

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        before, write = values["blocks"], int(values["write_idx"])
        same = (got["blocks"] == before).flatten(2).all(-1)  # type: ignore[operator]
        untouched = [s for s in range(same.shape[1]) if s != write]
        return [] if bool(same[:, untouched].all()) else ["a block slot that was not written to has changed"]

    def cost(self, problem: Problem) -> Cost:
        s = self.sizes(problem)
        sources = s["slots"] // 2 + 1
        with_delta = 1 if problem.axes["variant"] in WITH_DELTA else 0
        rows_moved = s["tokens"] * (sources + with_delta + 2)  # read sources and delta; write prefix and out
        return Cost(
            bytes=2 * s["hidden"] * (rows_moved + 3),
            flops=s["tokens"] * s["hidden"] * (4 * sources + 10),
        )
