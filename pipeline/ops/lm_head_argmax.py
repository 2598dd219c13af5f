"""lm_head_argmax: logits of this rank's vocabulary shard and their maximum: the greedy token before ranks compare.

    logits = h @ w_head.T (float32, never rounded to bf16);  val = max(logits);  id = base_id + position of the maximum

w_head [vocab, hidden]: 20480 rows (TP8), 10240 (TP16), 512 (nano). Axis `logits`: "yes" also writes the float32 logits.

One order decides, torch.max's, because stock engines and samplers use it and because a broken row should be seen, not
skipped: NaN above +inf above numbers above -inf; of equal ones the lowest id. So a row with a NaN logit gives the
lowest id that has one, and val NaN. Equal weight rows must give equal logits (the same order of summation), so that
their tie is one.

Hard rules, for each token row, with top the largest float64 logit, L that of the returned id, over the K products:

    error  = (2^-8 + K 2^-24) |top| + K 2^-24 sqrt(sum_k (h_k w_k)^2)    bf16-level: what rounding logits to bf16 costs
    id       L >= top - 4 error, so the id is exact when the next logit is further away than that
    tie      no lower id has the same float64 logit as the returned one
    val      |val - top| <= max(1e-2, error): absolute for logits up to 2.5, relative (2^-8) above
    not finite   where top is inf or NaN, val is the same and the id is the lowest one with it
    logits   the element rule of kgen.ops.projection; val and id are those of the logits that were written

Source: vLLM 0.33 computes bf16 logits, gathers, and takes the argmax in float32. Not covered: the comparison across
ranks, other sampling, logits that are finite here and overflow bf16 or float32.
"""

from collections.abc import Callable
from typing import ClassVar, cast

import torch
import torch.nn.functional as F

from kgen.contract.families import generator, normal
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.rules import ByOp
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import projection
from kgen.ops.pack import HIDDEN, PACK
from kgen.ops.projection import F32_UNIT, tensor
from kgen.records import Problem

Picker = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

VOCAB = {"k3-tp8": 163840 // 8, "k3-tp16": 163840 // 16, "nano": 512}  # rows of this rank
RANK = 3  # of the shard in the inputs: base_id is RANK * vocab

VALUE_ERROR = 1e-2
BF16_HALF = 2.0**-8  # half a bf16 step at 1: rounding a logit to bf16, relative
WINDOW = 4  # two logits may both be off, in both directions
SAME = 2.0**-40  # float64 logits closer than this times their spread are one value: above float64's own noise

PULL = 12.0  # logit of a planted winner; the others are unit normal
PLANTED = {"exact_ties": 1.0, "near_ties": 1 + 2.0**-9, "narrow_wins": 1.026}  # factor of the higher id's weight row
NEGATIVE = 16.0  # how far below zero all logits are pushed


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 logits [tokens, vocab] -> float32 maximum and i32 position, lowest first."""
    val, position = torch.max(logits.float(), dim=-1)
    return val, position.to(torch.int32)


def same_as(logits: torch.Tensor, value: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Which logits [tokens, vocab] are `value` [tokens] up to float64's own noise; NaN is NaN, inf is inf."""
    noise = torch.where(value.isfinite(), SAME * spread, 0.0)[:, None]
    near = (logits - value[:, None]).abs() <= noise
    return near | (logits == value[:, None]) | (logits.isnan() & value.isnan()[:, None])


def spread_at(h: torch.Tensor, w: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """sqrt(sum_k (h_k w_k)^2) of one logit for each token, float64 [tokens]."""
    return (h.double() * w[position].double()).square().sum(-1).sqrt()


class LmHeadArgmax(Op):
    name: ClassVar = "lm_head_argmax"
    title: ClassVar = "LM head: logits of the vocabulary shard and their argmax"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "vocab": VOCAB[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("h", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows"),
        TensorSpec("w_head", "bf16", ("vocab", "hidden"), Role.WEIGHT, "this rank's vocabulary rows, K contiguous"),
        TensorSpec("val", "f32", ("tokens",), Role.OUT, "largest logit", rule=ByOp()),
        TensorSpec("id", "i32", ("tokens",), Role.OUT, "its vocabulary id: base_id + row of w_head", rule=ByOp()),
        TensorSpec(
            "logits", "f32", ("tokens", "vocab"), Role.OUT, "all of them", only=("logits", ("yes",)), rule=ByOp()
        ),
    )
    scalars: ClassVar = (ScalarSpec("base_id", "i32", "vocabulary id of the shard's first row", 0, other=0),)
    axes: ClassVar = {"logits": ("no", "yes")}
    families: ClassVar = (
        Family("normal", "unit normal rows, weights N(0, 1/K)"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero: all logits tie, the first id wins"),
        Family("tiny", "rows times 2^-40"),
        Family("denormal_channels", "half of the channels bf16 denormals, which may be read as zero"),
        Family("large", "rows times 2^10: val is judged relatively"),
        Family("signed_zero", "half of the values are -0"),
        Family("all_negative", "no logit above zero"),
        Family("exact_ties", "the winner's weight row stands twice, for the first token as first and last row"),
        Family("near_ties", "the winner and a lower id within the window: either is right"),
        Family("narrow_wins", "the winner ahead of a lower id by some 1.5 windows: only one is right"),
        Family("nan_row", "a NaN in one token row: its first id and NaN; the other rows do not notice"),
        Family("infinite", "an inf in every other token row: logits +-inf, the lowest +inf wins"),
        Family("nan_logit", "as infinite, times one zero weight: the only NaN logit wins"),
    )
    floor: ClassVar = 2e-3  # no output is judged by it alone; the self-test moves inputs by ten times this
    shared: ClassVar = (projection,)
    sweep: ClassVar = projection.Projection.sweep
    mutable_inputs: ClassVar = ("h",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        tokens, hidden, vocab = size["tokens"], size["hidden"], size["vocab"]
        w = normal((vocab, hidden), gen, hidden**-0.5)
        h = projection.activation_rows((tokens, hidden), family, gen)
        if family in PLANTED:
            _plant(h, w, PLANTED[family], gen)
        elif family == "all_negative":
            common = normal((hidden,), gen, hidden**-0.5)
            w += common
            h -= NEGATIVE * common / torch.linalg.vector_norm(common)
        elif family == "nan_row":
            h[tokens // 2, hidden // 3] = torch.nan
        elif family in ("infinite", "nan_logit"):
            h[::2, hidden // 3] = torch.inf
            if family == "nan_logit":
                w[vocab // 2 + 1, hidden // 3] = 0.0
        return {"h": h.to(torch.bfloat16), "w_head": w.to(torch.bfloat16), "base_id": RANK * vocab}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        pick = cast(Picker, compile(greedy, dynamic=False)) if compile else greedy
        with_logits = problem.axes["logits"] == "yes"

        def run(values: Values) -> dict[str, torch.Tensor]:
            logits = F.linear(tensor(values, "h"), tensor(values, "w_head"))
            val, position = pick(logits)
            got = {"val": val, "id": position + int(values["base_id"])}
            return {**got, "logits": logits.float()} if with_logits else got

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        """Nothing is rounded as the op is written: both references are the same."""
        h, w = tensor(values, "h"), tensor(values, "w_head")
        logits = projection.product(h, w)
        top, at = logits.max(dim=-1)
        position = same_as(logits, top, spread_at(h, w, at)).int().argmax(dim=-1)
        got = {"val": top, "id": position.to(torch.int32) + int(values["base_id"])}
        return {**got, "logits": logits} if problem.axes["logits"] == "yes" else got

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The rules of this file's head, one line each."""
        h, w, base = tensor(values, "h"), tensor(values, "w_head"), int(values["base_id"])
        position = got["id"].long() - base
        if bool(((position < 0) | (position >= w.shape[0])).any()):
            return [f"an id is outside of this shard's {base} to {base + w.shape[0] - 1}"]
        logits = projection.product(h, w)
        breaches = _choice_breaches(h, w, logits, position, got["val"].double())
        if problem.axes["logits"] == "yes":
            allowed = projection.element_allowance(logits, projection.product_sizes(h, w), h.shape[1])
            breaches += projection.element_breaches("logits", got["logits"], logits, allowed)
            val, first = torch.max(got["logits"], dim=-1)
            if not (
                torch.equal(first, position) and torch.allclose(val, got["val"], rtol=0.0, atol=0.0, equal_nan=True)
            ):
                breaches.append("val and id are not the first maximum of the logits that were written")
        return breaches

    def cost(self, problem: Problem) -> Cost:
        size = self.sizes(problem)
        n, k, tokens = size["vocab"], size["hidden"], size["tokens"]
        logits = 4 * n if problem.axes["logits"] == "yes" else 0
        return Cost(bytes=2 * n * k + tokens * (2 * k + 8 + logits), flops=2 * tokens * n * k)


def _plant(h: torch.Tensor, w: torch.Tensor, factor: float, gen: torch.Generator) -> None:
    """For each token a pair of weight rows far above the others, the higher id's `factor` times the lower's."""
    tokens, vocab = h.shape[0], w.shape[0]
    inner = torch.randperm(vocab - 2, generator=gen, device=gen.device)[: 2 * tokens] + 1
    low, high = inner.view(tokens, 2).sort(dim=-1).values.unbind(-1)
    low[0], high[0] = 0, vocab - 1
    w[high] = w[low] * factor
    h += PULL * w[low] / torch.linalg.vector_norm(w[low], dim=-1, keepdim=True)


def _choice_breaches(
    h: torch.Tensor, w: torch.Tensor, logits: torch.Tensor, position: torch.Tensor, val: torch.Tensor
) -> list[str]:
    """What is wrong with id and val, given the float64 logits; one line each, with the first row it concerns."""
    top, at = logits.max(dim=-1)
    chosen = logits.gather(1, position[:, None])[:, 0]
    f32 = h.shape[1] * F32_UNIT
    error = (BF16_HALF + f32) * top.abs() + f32 * spread_at(h, w, at)
    lower = torch.arange(w.shape[0], device=w.device) < position[:, None]
    tied = same_as(logits, chosen, spread_at(h, w, position)) & lower
    found = (
        ("id: row {} is not a maximum, nor within 4 bf16-level errors of it", _away(chosen, top, WINDOW * error)),
        ("id: row {} ties with a lower id, which must win", tied.any(-1)),
        ("val: row {} is too far from the largest logit", _away(val, top, error.clamp_min(VALUE_ERROR))),
    )
    return [text.format(int(bad.nonzero()[0, 0])) for text, bad in found if bool(bad.any())]


def _away(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Where `got` is neither within `allowed` of a finite `want` nor the same inf or NaN."""
    near = ((got - want).abs() <= allowed) & want.isfinite()
    return ~(near | (got == want) | (got.isnan() & want.isnan()))
