"""oproj_allreduce_residual: attention output projection, sum over the ranks, AttnRes_post; one rank's work.

    own = bf16(y @ w_o.T)                                         this rank's partial
    o   = bf16(part_0 + part_1 + ... + part_{T-1})                float32, in rank order; part_rank = own, else peers[r]
    p   = bf16(prefix + o)   (delta)    or   p = o   (prefix_only: this layer opens a block);   prefix <- p
    out = the mix of blocks[:, 0..nb-1] and p, normed, as in attn_res; blocks are not written

`peers` [T, tokens, hidden] is this rank's mailbox: slot r holds rank r's partial as it arrived, bf16. One GPU stands in
for T with all slots filled beforehand. With a real collective the T - 1 other ranks store their partials into exactly
that buffer, each into its own slot of every peer, and slot `rank` stays unused: it holds anything here and must not be
read. A sender turns -0 into +0, because the pair (+0, -0), 0x8000_0000, marks a slot as not yet arrived; so no slot
holds -0, and the sign of a zero in o is not judged. All ranks add the same numbers in the same order, so they get the
same bits, which routing relies on.

Why prefix is not judged bit for bit: the float32 order inside y @ w_o.T is free, and a partial that lies within some
1e-6 of a rounding boundary may land on either side, one bf16 step apart. The rule is relL2 5e-4 (one missing or extra
rounding of o costs about 1e-3), and a hard rule bounds each element: all that follows the partial is monotone in it, so
prefix must lie between what the partial's least and greatest admissible values give. Families about the sum over ranks
or about many steps have one nonzero in each row of y: no order of summation can then move the partial.

Source: vLLM 0.33 (o-proj producer and consumer kernels). Not covered: waiting for mailboxes, re-arming them, two-shot
exchange.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.rules import RelL2
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import attn_res_math, projection
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
)
from kgen.ops.oproj_partial import LOCAL
from kgen.ops.pack import ATTN_RES_SLOTS, HIDDEN, PACK, RMS_EPS
from kgen.ops.projection import element_allowance, product, product_sizes
from kgen.records import Problem

RANKS = {"k3-tp8": 8, "k3-tp16": 16, "nano": 2}
POINTED = ("rank_order", "cancelling", "growing")  # one nonzero in each row of y
BIG = 2.0**20  # a float32 sum that holds it has steps of 2^-3


def _sizes(dims: str, ranks: int) -> dict[str, int]:
    return {"hidden": HIDDEN[dims], "local": LOCAL[dims], "ranks": ranks, "slots": ATTN_RES_SLOTS[dims]}


def _summed(own: torch.Tensor, values: Values, dtype: torch.dtype) -> torch.Tensor:
    """Sum over the ranks in rank order, in `dtype`."""
    peers, rank = tensor(values, "peers"), int(values["rank"])
    parts = [own if r == rank else peers[r] for r in range(peers.shape[0])]
    total = parts[0].to(dtype)
    for part in parts[1:]:
        total = total + part.to(dtype)
    return total


def _new_prefix(own: torch.Tensor, values: Values, variant: str) -> torch.Tensor:
    """p as written, bf16 values in float32, from this rank's rounded partial."""
    o = nearest(_summed(own, values, torch.float32))
    return nearest(tensor(values, "prefix").float() + o) if variant == "delta" else o


def _after_partial(own: torch.Tensor, values: Values, variant: str) -> tuple[torch.Tensor, torch.Tensor]:
    """out and p, bf16, from this rank's partial."""
    p = _new_prefix(own, values, variant)
    return mixed(p, values).to(torch.bfloat16), p.to(torch.bfloat16)


def _prefix(role: Role, doc: str, variant: str) -> TensorSpec:
    rule = RelL2(5e-4, drift=2e-3)  # over many steps, one-step differences add up
    return TensorSpec("prefix", "bf16", ("tokens", "hidden"), role, doc, only=("variant", (variant,)), rule=rule)


class OprojAllreduceResidual(Op):
    name: ClassVar = "oproj_allreduce_residual"
    title: ClassVar = "attention output projection, sum over ranks, AttnRes after attention"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {
        **{name: _sizes(name, ranks) for name, ranks in RANKS.items()},
        "vllm-tp1": _sizes("k3-tp8", 1),
    }
    tensors: ClassVar = (
        TensorSpec("y", "bf16", ("tokens", "local"), Role.IN, "gated attention rows of this rank's heads"),
        TensorSpec("w_o", "bf16", ("hidden", "local"), Role.WEIGHT, "output projection, K contiguous"),
        TensorSpec("peers", "bf16", ("ranks", "tokens", "hidden"), Role.IN, "mailbox: rank r's partial in slot r"),
        _prefix(Role.STATE, "running sum in this block", "delta"),
        _prefix(Role.OUT, "first row of the new block's running sum", "prefix_only"),
        TensorSpec("blocks", "bf16", ("tokens", "slots", "hidden"), Role.STATE, "block snapshots, read", exact=True),
        *VECTORS,
        TensorSpec("out", "bf16", ("tokens", "hidden"), Role.OUT, "normed mix"),
    )
    scalars: ClassVar = (ScalarSpec("rank", "i32", "this rank, 0..ranks-1", 0, other=0), NB, *EPSILONS)
    axes: ClassVar = {"variant": ("delta", "prefix_only")}
    families: ClassVar = (
        Family("normal", "unit normal rows and partials, a rank in the middle, half of the block slots used"),
        Family("rank_first", "rank 0"),
        Family("rank_last", "rank T-1"),
        Family("rank_order", "first and last other rank hold +-2^20: what lies between loses bits in the float32 sum"),
        Family("cancelling", "the other ranks take back this one's partial but for 2^-4"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero, on every rank"),
        Family("tiny", "rows times 2^-40"),
        Family("denormal", "y zero; partials, prefix and blocks bf16 denormals"),
        Family("large", "rows times 2^10"),
        Family("signed_zero", "half of the values are -0, but +0 in the mailbox"),
        Family("unused_inf", "the own mailbox slot and unmixed block slots hold inf"),
        *DEPTH_FAMILIES,
        Family("growing", "64 steps on one state, rms growing 1 to 30, as over the layers", steps=GROWING_STEPS),
    )
    scenarios: ClassVar = SWEPT_DEPTHS
    sweep: ClassVar = {
        "tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded",
        "ranks": "the TP width, as slots on one GPU; 1 in one process",
        "nb": "0, 2, 4, 6, 8",
        "write": "off: nothing is written after attention",
        "L2": "cold",
    }
    shared: ClassVar = (attn_res_math, projection)
    floor: ClassVar = 2.5e-3
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("y", "peers")

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        ranks = size["ranks"]
        rank = {"rank_first": 0, "rank_last": ranks - 1}.get(family, ranks // 2)
        drawn = draw(size, family, gen)
        if problem.axes["variant"] == "prefix_only":
            del drawn["prefix"]
        y = _rows_of_y((size["tokens"], size["local"]), family, gen)
        w_o = normal((size["hidden"], size["local"]), gen, size["local"] ** -0.5).to(torch.bfloat16)
        peers = torch.stack([rows((size["tokens"], size["hidden"]), family, gen) for _ in range(ranks)])
        if family == "growing":
            peers *= steps_to_grow() * ranks**-0.5
        if family in ("rank_order", "cancelling"):
            _opposed(peers, F.linear(y.float(), w_o.float()), rank, family, gen)
        peers = peers.to(torch.bfloat16) + 0.0  # -0 becomes +0, as senders make it
        if family == "unused_inf":
            peers[rank] = torch.inf
        values: Values = {k: v.to(torch.bfloat16) for k, v in drawn.items()}
        scalars = {"rank": rank, "nb": depth(family, size["slots"]), "eps": RMS_EPS, "eps_out": RMS_EPS}
        return {**values, "y": y, "w_o": w_o, "peers": peers, **scalars}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        variant = problem.axes["variant"]
        finish: Callable[..., Any] = compile(_after_partial, dynamic=False) if compile else _after_partial

        def run(values: Values) -> dict[str, torch.Tensor]:
            own = F.linear(tensor(values, "y"), tensor(values, "w_o"))
            out, p = finish(own, values, variant)
            blocks = tensor(values, "blocks")  # no copy in a timed call: an engine would make none
            return {"out": out, "prefix": p, "blocks": blocks if compile else blocks.clone()}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        variant, own = problem.axes["variant"], product(tensor(values, "y"), tensor(values, "w_o"))
        if rounded:
            p = _new_prefix(nearest(own), values, variant).double()
        else:
            p = _summed(own, values, torch.float64)
            p = tensor(values, "prefix").double() + p if variant == "delta" else p
        out = mixed(p, values)
        return {"out": nearest(out) if rounded else out, "prefix": p, "blocks": tensor(values, "blocks").double()}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """Blocks stay byte for byte what they were. Each element of prefix lies between the values that the least and
        the greatest admissible partial of this rank lead to: the float64 product plus or minus one bf16 step and the
        error of a float32 sum, then summed in rank order and rounded as written."""
        found = []
        if not bool(same_bits(tensor(values, "blocks"), got["blocks"]).all()):
            found.append("a block slot has changed; this op writes none")
        y, w_o = tensor(values, "y"), tensor(values, "w_o")
        want = product(y, w_o)
        allowed = element_allowance(want, product_sizes(y, w_o), y.shape[1])
        ends = (nearest(want - allowed), nearest(want + allowed))
        low, high = (_new_prefix(end, values, problem.axes["variant"]) for end in ends)
        p = got["prefix"].float()
        fine = ((low <= p) & (p <= high)) | (p.isnan() & low.isnan())
        if not bool(fine.all()):
            row, column = (int(i) for i in (~fine).nonzero()[0])
            between = f"between {float(low[row, column]):.9g} and {float(high[row, column]):.9g}"
            found.append(
                f"prefix[{row}, {column}] is {float(p[row, column]):.9g}, must be {between} whatever the order inside"
                f" the projection; {int((~fine).sum())} of {fine.numel()} elements are outside"
            )
        return found

    def cost(self, problem: Problem) -> Cost:
        return self._cost(problem, self.sizes(problem)["slots"] // 2)

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        """With this nb."""
        return self._cost(problem, int(values["nb"]))

    def _cost(self, problem: Problem, nb: int) -> Cost:
        s = self.sizes(problem)
        prefix = 2 if problem.axes["variant"] == "delta" else 1  # read and written, or written only
        rows_moved = s["tokens"] * (s["ranks"] - 1 + nb + prefix + 1)  # read mailbox and blocks; write out
        moved = s["hidden"] * s["local"] + s["tokens"] * s["local"] + s["hidden"] * (rows_moved + 3)
        mix = 4 * (nb + 1) + 10 + s["ranks"]
        return Cost(bytes=2 * moved, flops=s["tokens"] * s["hidden"] * (2 * s["local"] + mix))


def _rows_of_y(shape: tuple[int, int], family: str, gen: torch.Generator) -> torch.Tensor:
    if family == "denormal":
        return torch.zeros(shape, dtype=torch.bfloat16, device=gen.device)
    if family not in POINTED:
        return rows(shape, family, gen).to(torch.bfloat16)
    at = torch.randint(shape[1], (shape[0], 1), generator=gen, device=gen.device)
    size = 2.0 ** round(0.5 * torch.tensor(float(shape[1])).log2().item())  # a power of two: products are exact
    return torch.zeros(shape, device=gen.device).scatter_(1, at, size).to(torch.bfloat16)


def _opposed(peers: torch.Tensor, own: torch.Tensor, rank: int, family: str, gen: torch.Generator) -> None:
    """Other ranks' partials, changed in place to work against each other or against this rank's."""
    others = [r for r in range(peers.shape[0]) if r != rank]
    if family == "rank_order" and len(others) > 1:
        peers[others[0]] = BIG * (1 + torch.rand(own.shape, generator=gen, device=gen.device))
        peers[others[-1]] = -peers[others[0]]
    elif family == "cancelling" and others:
        rest = sum((peers[r].to(torch.bfloat16).float() for r in others[:-1]), own)
        peers[others[-1]] = -rest * (1 - 2.0**-4)
