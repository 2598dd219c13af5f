"""Each rule of the model evaluation on made-up records: what it refuses, what passes, and that its limit decides."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kgen.gates.modeleval import limits, rules_rows, rules_tokens
from kgen.gates.modeleval.breach import Finding
from kgen.gates.modeleval.exercise import (
    CONSTRAINED,
    EAGER,
    FILLED,
    FORCED,
    FREE,
    LONG,
    OTHER,
    SAMPLING,
    TASKS,
    VERIFY,
    Exercise,
    Seeds,
    Way,
)
from kgen.gates.modeleval.perform_tasks import CELLS
from kgen.gates.modeleval.questions import padded, questions
from kgen.gates.modeleval.sides import Left, Record
from kgen.model.nano.tasks import Item
from kgen.model.nano.vocabulary import EOS, encode

WAY, SEEDS = Way("nano-random"), Seeds(1, 2, 3)
STEPS, ROWS, VOCAB, HIDDEN = 24, 8, 512, 256
NEVER = float("inf")
GIVEN = Exercise(FORCED, WAY, ROWS, ROWS, STEPS, (EAGER,))


def left(exercise: Exercise, tensors: dict[str, torch.Tensor], **more: dict[str, torch.Tensor]) -> Left:
    """One exercise's record, and records of other modes."""
    modes = {EAGER: tensors, **{name.replace("_", " "): t for name, t in more.items()}}
    records = {(exercise.name, m): Record(exercise.name, m, t, (), {}) for m, t in modes.items()}
    return Left("done", "", {}, records)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS, HIDDEN_ROWS = 3 * normal(1, STEPS, ROWS, VOCAB), normal(2, STEPS, ROWS, HIDDEN)
LOGITS[..., 7] = 15  # a clear winner, so that noise changes no token


def noisy(seed: int, size: float = 0.01) -> dict[str, torch.Tensor]:
    return {
        "logits": LOGITS * (1 + size * normal(seed, *LOGITS.shape)),
        "hidden": HIDDEN_ROWS * (1 + size * normal(seed + 1, *HIDDEN_ROWS.shape)),
    }


EXACT = left(GIVEN, {"logits": LOGITS, "hidden": HIDDEN_ROWS})
Change = Callable[[dict[str, torch.Tensor]], None]


def rows(change: Change | None = None, exercise: Exercise = GIVEN, size: float = 0.01) -> Finding:
    """The rows of a candidate that rounds as coarsely as stock, changed."""
    mine = noisy(20, size)
    if change is not None:
        change(mine)
    exact = left(exercise, dict(EXACT.of(GIVEN, EAGER).tensors))
    stock = left(exercise, noisy(10))
    sides = [rules_rows.measure([exercise], side, exact, "cpu") for side in (left(exercise, mine), stock)]
    return rules_rows.judge([exercise], *sides)


def louder(name: str, where: Any, factor: float) -> Change:
    """More noise in a part of a tensor."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        own, exact = tensors[name][where], EXACT.of(GIVEN, EAGER).tensors[name][where]
        tensors[name][where] = exact + factor * (own - exact)

    return change


def wrong_tokens(tensors: dict[str, torch.Tensor]) -> None:
    tensors["logits"][:12, 0, 7] -= 40  # of 192 rows


def not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["logits"][3, 2, 1] = torch.inf


def rare_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden"][::2, :3] *= 1.2


def test_other_noise_of_the_same_size_passes() -> None:
    assert not rows().breaches


@pytest.mark.parametrize(
    ("change", "limit", "code", "says"),
    [
        (louder("logits", ..., 1.35), "POOLED", "fullmodel.logits", "eager: logits are 1.3"),
        (louder("hidden", ..., 1.7), "SINGLE", "fullmodel.logits", "the hidden rows are surely"),
        (louder("hidden", ..., 3.0), "ALONE", "fullmodel.logits", "t8 eager: the hidden rows are 3"),
        (
            louder("hidden", (..., slice(128, 256)), 6),
            "BLOCK",
            "fullmodel.logits",
            "eager: columns 128 to 255 of the hidden rows are 6",
        ),
        (
            louder("logits", (..., slice(384, 512)), 4),
            "BLOCK_SINGLE",
            "fullmodel.logits",
            "beside the others, columns 3",
        ),
        (louder("hidden", (slice(None), 5), 9), "SEQUENCE", "fullmodel.logits", "sequence 5 is, at every step, "),
        (rare_rows, "FAR", "fullmodel.logits", "rows near float64: of 192 rows the candidate loses 36"),
        (wrong_tokens, "ALPHA", "fullmodel.agreement", "greedy token: of 192 rows the candidate loses 12"),
    ],
)
def test_each_limit_refuses_its_fault_and_nothing_else_would(
    change: Change, limit: str, code: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [b for b in rows(change).breaches if b.code == code and says in b.message]
    weak = 0.0 if limit == "ALPHA" else NEVER
    monkeypatch.setattr(limits, limit, weak)
    if limit == "POOLED":
        monkeypatch.setattr(rules_rows, "POOLED", tuple((name, NEVER) for name, _ in rules_rows.POOLED))
    assert not [b for b in rows(change).breaches if says in b.message]


def test_rows_that_are_not_finite_come_first_and_say_how_many() -> None:
    assert rows(not_finite).breaches[0].message == f"{GIVEN.name} eager: 1 of 192 rows are not finite"


def test_a_fault_behind_a_filled_context_has_that_code() -> None:
    found = rows(louder("hidden", ..., 3.0), replace(GIVEN, kind=FILLED, context=4096)).breaches
    assert {b.code for b in found} == {"fullmodel.long_context"}


def drifting(growth: float, start: float = 1.0) -> Finding:
    """States whose distance from float64, over stock's, goes from `start` to `start * growth` in 8 checkpoints."""
    exercise = replace(GIVEN, states=8)
    true = normal(5, 8, 2, ROWS, 2, 4, 4)
    factor = (start * torch.linspace(1, growth, 8, dtype=torch.float64)).view(-1, 1, 1, 1, 1, 1)
    noise = 0.01 * normal(6, *true.shape)
    exact = left(exercise, {**EXACT.of(GIVEN, EAGER).tensors, "states": true})
    sides = [left(exercise, {**noisy(10), "states": true + f * noise}) for f in (factor, 1.0)]
    return rules_rows.judge([exercise], *(rules_rows.measure([exercise], s, exact, "cpu") for s in sides))


@pytest.mark.parametrize(
    ("growth", "start", "limit", "says"),
    [(2.0, 1.0, "DRIFT", "checkpoint 8 of 8 are 2.0"), (1.4, 1.0, "GROWTH", "grows 1.4")],
)
def test_states_that_leave_float64_faster_than_stocks_are_refused(
    growth: float, start: float, limit: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drifting(growth, start).breaches
    assert {b.code for b in found} == {"fullmodel.drift"} and any(says in b.message for b in found)
    monkeypatch.setattr(limits, limit, NEVER)
    assert not any(says in b.message for b in drifting(growth, start).breaches)


def test_states_as_far_as_stocks_pass() -> None:
    assert not drifting(1.0).breaches


# ---- tokens


def parted(at: Sequence[int], length: int = 50) -> torch.Tensor:
    """Ids [length, sequences] that leave a sequence of zeros at these steps; `length` is never."""
    steps = torch.arange(length)[:, None]
    return (steps >= torch.tensor(list(at))).long()


def freely(mine: Sequence[int], stock_other: Sequence[int], finite: bool = True) -> Finding:
    exercise = Exercise(FREE, WAY, 16, 16, 50, (EAGER,), other=8)
    own = parted([50] * 16)
    fine = torch.full(own.shape, True)
    fine[5, 3] = finite
    candidate = left(exercise, {"tokens": parted(mine), "finite": fine})
    stock = left(exercise, {"tokens": own}, other_eager={"tokens": parted(stock_other)})
    assert f"{OTHER} {EAGER}" == "other eager"
    return rules_tokens.free(exercise, EAGER, candidate, stock, None)


def from_truth(mine: Sequence[int], stocks: Sequence[int]) -> Finding:
    """Departures from float64's continuation."""
    exercise = Exercise(FREE, WAY, 16, 16, 50, (EAGER,))
    fine = torch.full((50, 16), True)
    candidate, stock = (
        left(exercise, {"tokens": parted(mine), "finite": fine}),
        left(exercise, {"tokens": parted(stocks)}),
    )
    return rules_tokens.free(exercise, EAGER, candidate, stock, left(exercise, {"tokens": parted([50] * 16)}))


LATE, EARLY, NONE = [30, 35, 40, 45] + [50] * 12, [2] * 16, [50] * 16


def test_free_generation_that_departs_as_seldom_as_stock_from_itself_passes() -> None:
    assert freely(LATE, [28, 33, 41] + [50] * 13).breaches == ()
    assert freely([30, *NONE[1:]], NONE).unjudged == ()  # one departure against none proves nothing


def test_free_generation_that_departs_oftener_is_refused_by_the_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    found = freely(EARLY, LATE)
    assert [b.code for b in found.breaches] == ["fullmodel.agreement"]
    assert found.numbers["hazard"][1] > limits.HAZARD
    monkeypatch.setattr(limits, "HAZARD", NEVER)
    assert not freely(EARLY, LATE).breaches


def test_where_float64_continues_too_stocks_departures_from_it_are_the_yardstick() -> None:
    assert from_truth(LATE, LATE).breaches == () and from_truth(EARLY, EARLY).breaches == ()
    found = from_truth(EARLY, LATE)
    assert [b.code for b in found.breaches] == ["fullmodel.agreement"]
    assert found.numbers["departures"] == [16, 4]
    assert from_truth(LATE, EARLY).breaches == (), "nearer than stock is fine"


def test_without_a_yardstick_a_candidate_that_departs_is_not_judged() -> None:
    found = freely(EARLY, NONE)
    assert not found.breaches and "there is no yardstick" in found.unjudged[0]


def test_free_tokens_without_finite_logits_are_refused() -> None:
    assert freely(LATE, LATE, finite=False).breaches[0].code == "fullmodel.logits"


def drafted(mine: Sequence[int], stocks: Sequence[int], broken: int = 0) -> Finding:
    exercise = Exercise(VERIFY, WAY, 16, 16, 50, (EAGER,), q=4)
    sides = [
        {
            "plain": parted(NONE),
            "drafted": parted(at),
            "drafted steps": torch.full((16,), 25),
            "not_finite": torch.tensor([n]),
        }
        for at, n in ((mine, broken), (stocks, 0))
    ]
    return rules_tokens.verify(exercise, EAGER, *(left(exercise, s) for s in sides))


def test_drafts_may_change_tokens_no_oftener_than_they_do_in_stock() -> None:
    assert not drafted(LATE, LATE).breaches
    assert drafted(LATE, LATE).numbers["tokens_per_step"] == [2.0, 2.0]
    assert [b.code for b in drafted(EARLY, LATE).breaches] == ["fullmodel.speculative"]
    assert [b.code for b in drafted(EARLY, NONE).breaches] == ["fullmodel.speculative"]
    assert [b.code for b in drafted(NONE, NONE, broken=2).breaches] == ["fullmodel.logits"]


def answered(kind: str, items: int, wrong: Sequence[int], stock_wrong: Sequence[int] = ()) -> tuple[Any, ...]:
    """An exercise, the sides' records and marks: `wrong` items are those by number."""
    exercise = Exercise(kind, WAY, 64, 64, 4, (EAGER,), items=items, context=64, shortest=True)
    asked = [item for batch in questions(exercise, SEEDS) for item in batch]
    rows = [[[0 if i in bad else 1] for i in range(len(asked))] for bad in (wrong, stock_wrong)]
    return exercise, EAGER, *(left(exercise, {"answers": padded(r)}) for r in rows), SEEDS


def says_one(item: Item, said: Sequence[int]) -> bool:
    return list(said) == [1]


def test_a_loss_of_a_point_is_refused_and_half_of_it_is_not() -> None:
    passes = rules_tokens.tasks(*answered(TASKS, 1000, range(0, 1000, 500)), says_one, 0.01)
    assert not passes.breaches and -0.01 <= passes.numbers["gated"]["lower_bound"] < 0
    refused = rules_tokens.tasks(*answered(TASKS, 1000, range(0, 1000, 50)), says_one, 0.01)
    assert [b.code for b in refused.breaches] == ["fullmodel.tasks"]
    assert not rules_tokens.tasks(*answered(TASKS, 1000, range(0, 1000, 50)), says_one, 0.05).breaches


def test_only_tasks_that_stock_answers_are_gated() -> None:
    first_task = range(200)
    found = rules_tokens.tasks(*answered(TASKS, 1000, (), first_task), says_one, 0.01)
    assert found.numbers["gated"]["items"] == 800
    nothing = rules_tokens.tasks(*answered(TASKS, 1000, (), range(0, 1000, 10)), says_one, 0.01)
    assert not nothing.breaches and "stock answers no task" in nothing.unjudged[0]


def test_answers_behind_a_long_prompt_are_compared_exactly() -> None:
    assert not rules_tokens.long(*answered(LONG, 16, range(6)), says_one).breaches
    assert [b.code for b in rules_tokens.long(*answered(LONG, 16, range(7)), says_one).breaches] == [
        "fullmodel.long_context"
    ]


def structured(
    answer: Callable[[Item], Sequence[int]], stocks: Callable[[Item], Sequence[int]] | None = None
) -> Finding:
    exercise = Exercise(CONSTRAINED, WAY, 16, 16, 64, (EAGER,), items=16, shortest=True)
    (asked,) = questions(exercise, SEEDS)
    sides = []
    for say in (answer, stocks or (lambda item: item.answer)):
        found = {"answers": padded([list(say(item)) for item in asked]), "not_finite": torch.tensor([0])}
        sides.append(left(exercise, found))
    return rules_tokens.constrained(exercise, EAGER, *sides, SEEDS)


def test_outputs_under_a_grammar_must_parse_and_end() -> None:
    good = structured(lambda item: item.answer)
    assert not good.breaches and good.numbers == {"items": 16, "finished": [16, 16], "unparsed": [0, 0]}
    broken = structured(lambda item: (*item.answer[:-2], EOS))
    assert [b.code for b in broken.breaches] == ["fullmodel.constrained"]
    endless = structured(lambda item: item.answer[:-1])
    assert "no longer end" in endless.breaches[0].message
    typed = structured(
        lambda item: (*encode(json.dumps(dict.fromkeys(json.loads(item.schema)["properties"], None))), EOS)
    )
    assert typed.numbers["unparsed"][0] == 16


def test_stock_outputs_that_do_not_parse_leave_no_baseline() -> None:
    assert structured(lambda item: item.answer, lambda item: (*item.answer[:-2], EOS)).unjudged


def test_without_the_grammar_library_the_part_cannot_be_judged() -> None:
    exercise = Exercise(CONSTRAINED, WAY, 16, 16, 64, (EAGER,))
    record = Record(exercise.name, EAGER, {}, (), {"lacks": "needs llguidance"})
    side = Left("done", "", {}, {(exercise.name, EAGER): record})
    found = rules_tokens.constrained(exercise, EAGER, side, side, SEEDS)
    assert not found.breaches and found.unjudged == (f"{exercise.name} {EAGER}: needs llguidance",)


def counts(seed: int, tilt: float = 0.0, total: int = 262_144) -> dict[str, torch.Tensor]:
    """Multinomial draws over the cells, with a share `tilt` moved to the lower half of the ids."""
    shares = torch.linspace(1, 3, CELLS, dtype=torch.float64)
    shares /= shares.sum()
    lower = torch.arange(CELLS) < CELLS // 2
    moved = shares + tilt * torch.where(lower, shares / shares[lower].sum(), -shares / shares[~lower].sum())
    gen = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(moved, total, replacement=True, generator=gen)
    table = torch.bincount(drawn, minlength=CELLS).expand(2, 2, CELLS).clone()
    return {"counts": table, "not_drawn": torch.tensor([0])}


def sampled(mine: dict[str, torch.Tensor]) -> Finding:
    exercise = Exercise(SAMPLING, WAY, 64, 64, 64, (EAGER,), draws=64)
    return rules_tokens.sampling(exercise, EAGER, left(exercise, mine), left(exercise, counts(1)))


def test_a_tilt_of_two_per_cent_is_seen_and_other_seeds_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(sampled(counts(seed)).breaches for seed in range(2, 12))
    assert [b.code for b in sampled(counts(2, 0.02)).breaches] == ["fullmodel.sampling"]
    monkeypatch.setattr(limits, "SAMPLING_ALPHA", 1e-300)
    assert not sampled(counts(2, 0.02)).breaches


def test_rows_that_leave_nothing_to_draw_are_refused() -> None:
    assert sampled({**counts(2), "not_drawn": torch.tensor([5])}).breaches[0].code == "fullmodel.logits"
