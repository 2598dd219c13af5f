"""ranked_oproj_allreduce_residual: output projection, sum over the ranks, AttnRes after attention; all ranks together.

    part_r = bf16(y_r @ w_o_r.T)                                  each rank's heads
    o      = bf16(part_0 + part_1 + ... + part_{T-1})             float32, in rank order; -0 in a part counts as +0
    p      = bf16(prefix + o)   (delta)    or   p = o   (prefix_only: this layer opens a block);   prefix <- p
    out    = the mix of blocks[:, 0..nb-1] and p, normed, as in attn_res; blocks are not written

y and w_o are a rank's own; prefix, blocks, weight vectors and scalars are the same on all ranks, and so must out and
prefix be, bit for bit. This is what oproj_allreduce_residual states for one rank with a mailbox filled beforehand; here
the exchange is part of the op. prefix is judged as there: the float32 order inside y @ w_o.T is free, so each element
must lie between the values that the least and the greatest admissible parts of all ranks lead to.

Source: vLLM 0.33 (o-proj producer and consumer kernels). Not covered: which exchange is used; one-shot and two-shot
give the same bits.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, StockFn, Values
from kgen.contract.ranks import AXIS, RankedOp, as_sent, in_rank_order, of_rank, ranks_of
from kgen.contract.rules import RelL2
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import attn_res_math, projection, ranked_math
from kgen.ops.attn_res_math import (
    EPSILONS,
    NB,
    SWEPT_DEPTHS,
    VECTORS,
    depth,
    draw,
    mixed,
    nearest,
    same_bits,
    tensor,
)
from kgen.ops.oproj_partial import LOCAL
from kgen.ops.pack import ATTN_RES_SLOTS, HIDDEN, PACK, RMS_EPS
from kgen.ops.projection import element_allowance, product, product_sizes
from kgen.ops.ranked_math import RANKS, SWEPT_RANKS, opposed, shared_by_all
from kgen.records import Problem

POINTED = ("rank_order", "cancelling")  # one nonzero in each row of y: no order of summation moves a part
COMMON = ("prefix", "blocks", *(spec.name for spec in VECTORS))


def _new_prefix(parts: list[torch.Tensor], values: Values, variant: str) -> torch.Tensor:
    """p of one rank as written, bf16 values in float32, from the rounded parts of all ranks."""
    o = nearest(in_rank_order([as_sent(part) for part in parts], torch.float32))
    return nearest(tensor(values, "prefix").float() + o) if variant == "delta" else o


def _after_parts(parts: torch.Tensor, values: Values, variant: str) -> tuple[torch.Tensor, torch.Tensor]:
    """out and p of all ranks, bf16."""
    every = [of_rank(values, rank) for rank in range(parts.shape[0])]
    p = [_new_prefix(list(parts), mine, variant) for mine in every]
    out = [mixed(row, mine).to(torch.bfloat16) for row, mine in zip(p, every, strict=True)]
    return torch.stack(out), torch.stack(p).to(torch.bfloat16)


def _products(values: Values) -> list[torch.Tensor]:
    """y_r @ w_o_r.T in float64, a rank each."""
    return [product(y, w) for y, w in zip(tensor(values, "y"), tensor(values, "w_o"), strict=True)]


def _prefix(role: Role, doc: str, variant: str) -> TensorSpec:
    return TensorSpec(
        "prefix", "bf16", ("tokens", "hidden"), role, doc, only=("variant", (variant,)), rule=RelL2(5e-4, drift=2e-3)
    )


class RankedOprojAllreduceResidual(RankedOp):
    name: ClassVar = "ranked_oproj_allreduce_residual"
    title: ClassVar = "attention output projection, sum over ranks, AttnRes after attention, on all ranks"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "local": LOCAL[d], "slots": ATTN_RES_SLOTS[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("y", "bf16", ("tokens", "local"), Role.IN, "gated attention rows of this rank's heads"),
        TensorSpec("w_o", "bf16", ("hidden", "local"), Role.WEIGHT, "output projection, K contiguous"),
        _prefix(Role.STATE, "running sum in this block", "delta"),
        _prefix(Role.OUT, "first row of the new block's running sum", "prefix_only"),
        TensorSpec("blocks", "bf16", ("tokens", "slots", "hidden"), Role.STATE, "block snapshots, read", exact=True),
        *VECTORS,
        TensorSpec("out", "bf16", ("tokens", "hidden"), Role.OUT, "normed mix"),
    )
    scalars: ClassVar = (NB, *EPSILONS)
    axes: ClassVar = {"variant": ("delta", "prefix_only"), AXIS: RANKS}
    same: ClassVar = ("out", "prefix")
    families: ClassVar = (
        Family("normal", "unit normal rows, half of the block slots used"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero, on every rank"),
        Family("tiny", "rows times 2^-40"),
        Family("large", "rows times 2^10"),
        Family("signed_zero", "half of the values are -0; every other row of y is -0 alone"),
        Family("rank_order", "first and last rank hold +-2^20: what lies between loses bits in the float32 sum"),
        Family("cancelling", "the last rank takes back the others' sum but for 2^-4"),
        Family("unused_inf", "block slots that are not mixed hold inf"),
        Family("no_blocks", "nb = 0: the mix is the row itself"),
        Family("all_blocks", "every slot mixed"),
        Family("running", "64 steps on one state", steps=64),
    )
    scenarios: ClassVar = SWEPT_DEPTHS
    sweep: ClassVar = {
        "tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded",
        AXIS: SWEPT_RANKS,
        "nb": "0, 2, 4, 6, 8",
        "L2": "cold",
    }
    shared: ClassVar = (attn_res_math, projection, ranked_math)
    floor: ClassVar = 2.5e-3
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("y",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen, ranks = self.sizes(problem), generator(seed, device), ranks_of(problem)
        tokens, local, hidden = size["tokens"], size["local"], size["hidden"]
        drawn = draw(size, family, gen)
        if problem.axes["variant"] == "prefix_only":
            del drawn["prefix"]
        w_o = torch.stack([normal((hidden, local), gen, local**-0.5) for _ in range(ranks)])
        opposed(w_o, family, gen)
        if family in POINTED:
            at = torch.randint(local, (tokens, 1), generator=gen, device=device)
            y = torch.zeros((tokens, local), device=device).scatter_(1, at, 1.0).expand(ranks, tokens, local)
        else:
            y = torch.stack([rows((tokens, local), family, gen) for _ in range(ranks)])
        if family == "signed_zero":
            y[:, ::2] = -0.0
        common = {k: shared_by_all(v.to(torch.bfloat16), ranks) for k, v in drawn.items()}
        scalars = {"nb": depth(family, size["slots"]), "eps": RMS_EPS, "eps_out": RMS_EPS}
        own = {"y": y.to(torch.bfloat16).contiguous(), "w_o": w_o.to(torch.bfloat16)}
        return {**common, **own, **scalars}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        variant = problem.axes["variant"]
        finish: Callable[..., Any] = compile(_after_parts, dynamic=False) if compile else _after_parts

        def run(values: Values) -> dict[str, torch.Tensor]:
            parts = torch.bmm(tensor(values, "y"), tensor(values, "w_o").mT)
            out, p = finish(parts, values, variant)
            blocks = tensor(values, "blocks")  # no copy in a timed call: an engine would make none
            return {"out": out, "prefix": p, "blocks": blocks if compile else blocks.clone()}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        variant, exact = problem.axes["variant"], _products(values)
        outs, prefixes = [], []
        for rank in range(len(exact)):
            mine = of_rank(values, rank)
            if rounded:
                p = _new_prefix([nearest(part) for part in exact], mine, variant).double()
            else:
                p = in_rank_order(exact, torch.float64)
                p = tensor(mine, "prefix").double() + p if variant == "delta" else p
            mix = mixed(p, mine)
            outs.append(nearest(mix) if rounded else mix)
            prefixes.append(p)
        blocks = tensor(values, "blocks").double()
        return {"out": torch.stack(outs), "prefix": torch.stack(prefixes), "blocks": blocks}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The same bits on all ranks; blocks stay as they were; each element of prefix between its bounds."""
        found = super().hard_rules(problem, values, got)
        if not bool(same_bits(tensor(values, "blocks"), got["blocks"]).all()):
            found.append("a block slot has changed; this op writes none")
        ends: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for y, w_o, want in zip(tensor(values, "y"), tensor(values, "w_o"), _products(values), strict=True):
            allowed = element_allowance(want, product_sizes(y, w_o), y.shape[1])
            ends[0].append(nearest(want - allowed))
            ends[1].append(nearest(want + allowed))
        for rank in range(ranks_of(problem)):
            low, high = (_new_prefix(end, of_rank(values, rank), problem.axes["variant"]) for end in ends)
            p = got["prefix"][rank].float()
            fine = ((low <= p) & (p <= high)) | (p.isnan() & low.isnan())
            if not bool(fine.all()):
                row, column = (int(i) for i in (~fine).nonzero()[0])
                between = f"between {float(low[row, column]):.9g} and {float(high[row, column]):.9g}"
                found.append(
                    f"prefix[{row}, {column}] of rank {rank} is {float(p[row, column]):.9g}, must be {between} whatever"
                    f" the order inside the projections; {int((~fine).sum())} of {fine.numel()} elements are outside"
                )
        return found

    def cost(self, problem: Problem) -> Cost:
        """Of one rank: what oproj_allreduce_residual moves."""
        return self._cost(problem, self.sizes(problem)["slots"] // 2)

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        """With this nb."""
        return self._cost(problem, int(values["nb"]))

    def _cost(self, problem: Problem, nb: int) -> Cost:
        s = self.sizes(problem)
        prefix = 2 if problem.axes["variant"] == "delta" else 1  # read and written, or written only
        rows_moved = s["tokens"] * (s[AXIS] - 1 + nb + prefix + 1)  # mailbox and blocks read, out written
        moved = s["hidden"] * s["local"] + s["tokens"] * s["local"] + s["hidden"] * (rows_moved + 3)
        mix = 4 * (nb + 1) + 10 + s[AXIS]
        return Cost(bytes=2 * moved, flops=s["tokens"] * s["hidden"] * (2 * s["local"] + mix))
