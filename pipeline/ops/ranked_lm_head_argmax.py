"""ranked_lm_head_argmax: logits of a vocabulary that is split over the ranks, and the greedy token, on all ranks.

    logits_r    = h @ w_head_r.T                            float32, never rounded to bf16; rank r's rows
    val_r, at_r = the largest of rank r's, its position     as lm_head_argmax says: NaN above +inf, the lowest of equals
    val, id     = the best (val_r, r vocab + at_r)          of all ranks in the same order; a val of -0 is written as +0

h is the same on all ranks, w_head [vocab, hidden] is a rank's own; id counts through the rows of all ranks. val and id
must be the same on all ranks bit for bit: a rank that decoded another token would go on with another sequence. What
else is right is what lm_head_argmax says of one rank that holds all rows, so the same order of summation must be kept
on all ranks: equal weight rows tie wherever they are, and the lower rank wins.

A rank sends two words a token, the bits of val_r and its id. Both differ from the word 0x80000000 that marks an empty
place: a float32 -0 is sent as +0, and an id is not negative.

Source: vLLM 0.33 gathers the logits of all ranks and takes their argmax; a pair of each rank says as much. Not covered:
other sampling, logits as an output, vocabularies that ranks share unevenly.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch

from kgen.contract.op import Cost, Family, StockFn, Values
from kgen.contract.ranks import AXIS, RankedOp, as_sent, ranks_of
from kgen.contract.rules import ByOp
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import lm_head_argmax, projection, ranked_math
from kgen.ops.lm_head_argmax import VOCAB, LmHeadArgmax
from kgen.ops.pack import HIDDEN, PACK
from kgen.ops.projection import tensor
from kgen.ops.ranked_math import RANKS, SWEPT_RANKS, shared_by_all
from kgen.records import Problem

VANISHING = 2.0**-100  # its square is zero in float32


class _Whole(LmHeadArgmax):
    """One rank that holds the rows of all."""

    def sizes(self, problem: Problem) -> dict[str, int]:
        size = super().sizes(problem)
        return {**size, "vocab": size["vocab"] * ranks_of(problem)}


WHOLE = _Whole()


def _of_whole(problem: Problem) -> Problem:
    return replace(problem, axes={**problem.axes, "logits": "no"})


def _gathered(values: Values) -> Values:
    """Arguments of the one rank that holds all rows."""
    return {"h": tensor(values, "h")[0], "w_head": tensor(values, "w_head").flatten(0, 1), "base_id": 0}


def _on_all(got: dict[str, torch.Tensor], ranks: int) -> dict[str, torch.Tensor]:
    return {"val": shared_by_all(as_sent(got["val"]), ranks), "id": shared_by_all(got["id"], ranks)}


class RankedLmHeadArgmax(RankedOp):
    name: ClassVar = "ranked_lm_head_argmax"
    title: ClassVar = "LM head over a vocabulary that is split over ranks, and the greedy token on all of them"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "vocab": VOCAB[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("h", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows, the same on all ranks"),
        TensorSpec("w_head", "bf16", ("vocab", "hidden"), Role.WEIGHT, "this rank's vocabulary rows, K contiguous"),
        TensorSpec("val", "f32", ("tokens",), Role.OUT, "largest logit of all ranks", rule=ByOp()),
        TensorSpec("id", "i32", ("tokens",), Role.OUT, "its vocabulary id: rank * vocab + row", rule=ByOp()),
    )
    axes: ClassVar = {AXIS: RANKS}
    same: ClassVar = ("val", "id")
    families: ClassVar = (
        *LmHeadArgmax.families,
        Family("twins", "every rank has the same rows: all ranks tie, the first one wins"),
        Family("sentinel", "products that are -0 in float32: a sum that begins at -0 is what an empty mailbox holds"),
    )
    floor: ClassVar = LmHeadArgmax.floor
    shared: ClassVar = (lm_head_argmax, projection, ranked_math)
    sweep: ClassVar = {**LmHeadArgmax.sweep, AXIS: SWEPT_RANKS}
    mutable_inputs: ClassVar = ("h",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        ranks, own = ranks_of(problem), family in ("twins", "sentinel")
        drawn = WHOLE.inputs(_of_whole(problem), "normal" if own else family, seed, device)
        h, whole = tensor(drawn, "h"), tensor(drawn, "w_head")
        w = whole.reshape(ranks, -1, whole.shape[-1])
        if family == "twins":
            w = w[:1].expand_as(w)
        elif family == "sentinel":
            h, w = torch.zeros_like(h), -w.abs()
            h[:, 1], w[..., 1] = VANISHING, -VANISHING
        return {"h": shared_by_all(h, ranks), "w_head": w.contiguous()}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        run = WHOLE.stock(_of_whole(problem), compile)
        return lambda values: _on_all(run(_gathered(values)), ranks_of(problem))

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        """Nothing is rounded as the op is written: both references are the same."""
        return _on_all(WHOLE.reference(_of_whole(problem), _gathered(values), rounded), ranks_of(problem))

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The same bits on all ranks; lm_head_argmax's rules over all rows; no val of -0."""
        found = super().hard_rules(problem, values, got)
        mine = {name: of[0] for name, of in got.items()}
        found += [f"rank 0: {line}" for line in WHOLE.hard_rules(_of_whole(problem), _gathered(values), mine)]
        if bool(((got["val"] == 0) & got["val"].signbit()).any()):
            found.append("val is -0, which no mailbox can carry")
        return found

    def cost(self, problem: Problem) -> Cost:
        """Of one rank: its rows and h read, a pair a token from each peer, val and id written."""
        s = self.sizes(problem)
        n, k, tokens = s["vocab"], s["hidden"], s["tokens"]
        return Cost(bytes=2 * n * k + tokens * (2 * k + 8 * s[AXIS]), flops=2 * tokens * n * k)
