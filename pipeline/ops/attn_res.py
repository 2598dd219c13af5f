"""attn_res: attention residuals: add the pending delta, optionally snapshot the row, mix sources, norm.

    p = bf16(prefix + delta);  prefix <- p;  if write_idx >= 0: blocks[:, write_idx] <- p
    V = [blocks[:, 0..nb-1], p]
    l_s = (sum_c V_s[c] w_norm[c] w_query[c]) * rsqrt(mean_c V_s[c]^2 + eps);  a = softmax(l)
    mix = sum_s a_s V_s;  out = bf16(mix * rsqrt(mean(mix^2) + eps_out) * w_out)

The `final` variant rounds mix to bf16 before the norm; `prefix_only` has no delta: p = prefix. With aux=yes the call
also stores a copy of p, which a drafter reads. The slot that a call writes is not one that it mixes: write_idx >= nb.
Slots from nb on may hold anything, inf included. Before attention nb = ceil(i/12) in layer i, and every twelfth layer
writes slot i/12; after attention nothing is written; `final` ends the step with nb = 8. Source: vLLM 0.33 (its AttnRes
kernels). Not covered: a delta that arrives in a mailbox, the all-reduce before it (oproj_allreduce_residual).
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from kgen.contract.families import generator, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import attn_res_math
from kgen.ops.attn_res_math import (
    DEPTH_FAMILIES,
    EPSILONS,
    GROWING_STEPS,
    NB,
    SWEPT_DEPTHS,
    VECTORS,
    depth,
    draw,
    mixed,
    nearest,
    same_bits,
    steps_to_grow,
    tensor,
    unrounded,
)
from kgen.ops.pack import ATTN_RES_SLOTS, HIDDEN, PACK, RMS_EPS
from kgen.records import Problem

WITH_DELTA = ("delta", "final")


def _evaluate(values: Values, variant: str) -> tuple[torch.Tensor, torch.Tensor]:
    """out and p in bf16, as an engine without a fused kernel computes them."""
    p = tensor(values, "prefix")
    if variant in WITH_DELTA:
        p = p + tensor(values, "delta")
    return mixed(p.float(), values, nearest if variant == "final" else unrounded).to(torch.bfloat16), p


def _results(values: Values, problem: Problem, out: torch.Tensor, p: torch.Tensor) -> dict[str, torch.Tensor]:
    """All outputs and states, in the dtype of p; `blocks` is the very input where no slot is written."""
    blocks, write = tensor(values, "blocks"), int(values["write_idx"])
    blocks = blocks.to(p.dtype)
    if write >= 0:
        blocks = torch.cat([blocks[:, :write], p[:, None], blocks[:, write + 1 :]], dim=1)
    aux = {"aux": p} if problem.axes["aux"] == "yes" else {}
    return {"out": out, "prefix": p, "blocks": blocks, **aux}


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
        *VECTORS,
        TensorSpec("out", "bf16", ("tokens", "hidden"), Role.OUT, "normed mix"),
        TensorSpec(
            "aux", "bf16", ("tokens", "hidden"), Role.OUT, "copy of the new prefix", exact=True, only=("aux", ("yes",))
        ),
    )
    scalars: ClassVar = (
        NB,
        ScalarSpec("write_idx", "i32", "slot to snapshot into, nb..slots-1; -1: none", -1, other=1),
        *EPSILONS,
    )
    axes: ClassVar = {"variant": ("delta", "prefix_only", "final"), "aux": ("no", "yes")}
    families: ClassVar = (
        Family("normal", "unit normal rows, half of the slots used"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero"),
        Family("tiny", "rows times 2^-40"),
        Family("denormal", "rows times 2^-128: bf16 denormals"),
        Family("large", "rows times 2^10"),
        Family("signed_zero", "half of the values are -0: -0 + -0 stays -0 in prefix"),
        Family("unused_inf", "slots that are not mixed hold inf, which must not even be multiplied by zero"),
        *DEPTH_FAMILIES,
        Family("write", "snapshot into the first free slot, which is not mixed in this call"),
        Family("write_first", "nb = 0, snapshot into slot 0"),
        Family("write_last", "snapshot into the last slot, all others mixed"),
        Family("growing", "64 steps on one state, rms growing 1 to 30, as over the layers", steps=GROWING_STEPS),
    )
    scenarios: ClassVar = (*SWEPT_DEPTHS, Family("nb4_write", "nb = 4 with a snapshot"))
    sweep: ClassVar = {
        "tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded",
        "nb": "0, 2, 4, 6, 8",
        "write": "off; on at nb = 4",
        "L2": "cold",
    }
    shared: ClassVar = (attn_res_math,)
    floor: ClassVar = 2.5e-3
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("prefix", "delta")

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        drawn = draw(size, family, gen)
        if problem.axes["variant"] in WITH_DELTA:
            delta = rows((size["tokens"], size["hidden"]), family, gen)
            drawn["delta"] = delta * steps_to_grow() if family == "growing" else delta
        nb, write = _depth_and_write(family, size["slots"])
        values: Values = {k: v.to(torch.bfloat16) for k, v in drawn.items()}
        return {**values, "nb": nb, "write_idx": write, "eps": RMS_EPS, "eps_out": RMS_EPS}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        variant = problem.axes["variant"]
        evaluate: Callable[..., Any] = compile(_evaluate, dynamic=False) if compile else _evaluate

        def run(values: Values) -> dict[str, torch.Tensor]:
            got = _results(values, problem, *evaluate(values, variant))
            # an engine keeps blocks in place: a timed call does not pay for a copy, others may write into what they get
            return got if compile else {**got, "blocks": got["blocks"].clone()}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        r, variant = nearest if rounded else unrounded, problem.axes["variant"]
        p = tensor(values, "prefix").double()
        if variant in WITH_DELTA:
            p = r(p + tensor(values, "delta").double())
        return _results(values, problem, r(mixed(p, values, r if variant == "final" else unrounded)), p)

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """Block slots that the call does not write stay byte for byte what they were."""
        same = same_bits(tensor(values, "blocks"), got["blocks"]).flatten(2).all(-1)
        untouched = [s for s in range(same.shape[1]) if s != int(values["write_idx"])]
        return [] if bool(same[:, untouched].all()) else ["a block slot that was not written to has changed"]

    def cost(self, problem: Problem) -> Cost:
        return self._cost(problem, self.sizes(problem)["slots"] // 2, write=False)

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        """With these nb and write_idx."""
        return self._cost(problem, int(values["nb"]), int(values["write_idx"]) >= 0)

    def _cost(self, problem: Problem, nb: int, write: bool) -> Cost:
        s = self.sizes(problem)
        updates = 2 if problem.axes["variant"] in WITH_DELTA else 0  # read delta, write prefix
        copies = int(write) + (problem.axes["aux"] == "yes")
        rows_moved = s["tokens"] * (nb + 1 + updates + 1 + copies)  # read blocks and prefix; write out
        return Cost(
            bytes=2 * s["hidden"] * (rows_moved + 3),
            flops=s["tokens"] * s["hidden"] * (4 * (nb + 1) + 10),
        )


def _depth_and_write(family: str, slots: int) -> tuple[int, int]:
    """nb and write_idx: a snapshot goes into the first free slot."""
    nb = {"write_first": 0, "write_last": slots - 1}.get(family, depth(family, slots))
    return nb, nb if "write" in family and nb < slots else -1
