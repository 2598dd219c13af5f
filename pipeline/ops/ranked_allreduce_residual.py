"""ranked_allreduce_residual: rows summed over the ranks, added to the residual; all ranks together.

    o      = bf16(part_0 + part_1 + ... + part_{T-1})        float32, in rank order; -0 in a part counts as +0
    prefix = bf16(prefix + o)

part [tokens, hidden] is a rank's own partial sum; prefix is the same on all ranks before and after. The order of the
sum is fixed, so every rank gets the same bits, which routing relies on, and both outputs are judged bit for bit: no
element of o is -0, as the mailboxes of a one-shot exchange cannot carry it (the bf16 pair (+0, -0) marks a word that
has not arrived). Source: the all-reduce between vLLM's o-proj producer and consumer. Not covered: the projection before
it and the attention-residual mix after it (ranked_oproj_allreduce_residual).
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from kgen.contract.families import generator, rows
from kgen.contract.op import Cost, Family, StockFn, Values
from kgen.contract.ranks import AXIS, RankedOp, as_sent, in_rank_order, ranks_of
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import ranked_math
from kgen.ops.attn_res_math import nearest, tensor
from kgen.ops.pack import HIDDEN, PACK
from kgen.ops.ranked_math import RANKS, SWEPT_RANKS, opposed, shared_by_all
from kgen.records import Problem


def _reduced(values: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the new prefix of all ranks, bf16."""
    parts, prefix = as_sent(tensor(values, "part")), tensor(values, "prefix")
    o = in_rank_order(list(parts), torch.float32).to(torch.bfloat16).expand_as(parts)
    return o, (prefix.float() + o.float()).to(torch.bfloat16)


class RankedAllreduceResidual(RankedOp):
    name: ClassVar = "ranked_allreduce_residual"
    title: ClassVar = "sum over ranks in rank order, added to the residual"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {name: {"hidden": size} for name, size in HIDDEN.items()}
    tensors: ClassVar = (
        TensorSpec("part", "bf16", ("tokens", "hidden"), Role.IN, "this rank's partial sum"),
        TensorSpec(
            "prefix", "bf16", ("tokens", "hidden"), Role.STATE, "running sum, the same on all ranks", exact=True
        ),
        TensorSpec("o", "bf16", ("tokens", "hidden"), Role.OUT, "the sum over ranks", exact=True),
    )
    axes: ClassVar = {AXIS: RANKS}
    same: ClassVar = ("o", "prefix")
    families: ClassVar = (
        Family("normal", "unit normal partials"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero, on every rank"),
        Family("tiny", "rows times 2^-40"),
        Family("denormal", "bf16 denormals"),
        Family("large", "rows times 2^10"),
        Family("signed_zero", "half of the values are -0"),
        Family("sentinel", "every other row holds nothing but the pair (+0, -0), as an empty mailbox does"),
        Family("rank_order", "first and last rank hold +-2^20: what lies between loses bits in the float32 sum"),
        Family("cancelling", "the last rank takes back the others' sum but for 2^-4"),
        Family("running", "64 steps on one state", steps=64),
    )
    sweep: ClassVar = {"tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded", AXIS: SWEPT_RANKS}
    shared: ClassVar = (ranked_math,)
    floor: ClassVar = 2e-3
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("part",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen, ranks = self.sizes(problem), generator(seed, device), ranks_of(problem)
        shape = (size["tokens"], size["hidden"])
        parts = torch.stack([rows(shape, family, gen) for _ in range(ranks)])
        if family == "sentinel":
            parts[:, ::2] = torch.tensor([0.0, -0.0], device=device).repeat(size["hidden"] // 2)
        opposed(parts, family, gen)
        prefix = rows(shape, family, gen).to(torch.bfloat16)
        return {"part": parts.to(torch.bfloat16), "prefix": shared_by_all(prefix, ranks)}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        reduced: Callable[..., Any] = compile(_reduced, dynamic=False) if compile else _reduced

        def run(values: Values) -> dict[str, torch.Tensor]:
            o, prefix = reduced(values)
            return {"o": o, "prefix": prefix}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        parts, prefix = as_sent(tensor(values, "part")), tensor(values, "prefix")
        o = in_rank_order(list(parts), torch.float32 if rounded else torch.float64)
        o = (nearest(o) if rounded else o).double().expand_as(parts)
        p = prefix.double() + o
        return {"o": o, "prefix": nearest(p.float()).double() if rounded else p}

    def cost(self, problem: Problem) -> Cost:
        """Of one rank: its partial and prefix read, T - 1 partials read from its mailbox, o and prefix written."""
        s = self.sizes(problem)
        row = s["tokens"] * s["hidden"]
        return Cost(bytes=2 * row * (s[AXIS] + 3), flops=row * (s[AXIS] + 1))
