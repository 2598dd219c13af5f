"""Rules of the model evaluation right at their limits, and what they leave in the evidence; on numbers written by hand.

Which fault each rule refuses is in test_modeleval_gate_rules.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kgen.gates.modeleval import limits, rules_rows, rules_tokens
from kgen.gates.modeleval.breach import AGREEMENT, Finding
from kgen.gates.modeleval.distance import Rows
from kgen.gates.modeleval.divergence import Hazards
from kgen.gates.modeleval.exercise import (
    CONSTRAINED,
    EAGER,
    FORCED,
    FREE,
    GRAPH,
    OTHER,
    SAMPLING,
    TASKS,
    Exercise,
    Seeds,
    Way,
)
from kgen.gates.modeleval.paired import Estimate, Pairs, lower_bound
from kgen.gates.modeleval.questions import padded, questions
from kgen.gates.modeleval.rules_rows import Measured
from kgen.gates.modeleval.sides import Left, Record
from kgen.model.nano.tasks import Item
from kgen.model.nano.vocabulary import EOS, decode, encode

WAY, SEEDS = Way("nano-random"), Seeds(1, 2, 3)
GIVEN = Exercise(FORCED, WAY, 2, 2, 3, (EAGER,))
KEY = (GIVEN.name, EAGER)
FREELY = Exercise(FREE, WAY, 16, 16, 50, (EAGER,), other=8)


def left(exercise: Exercise, words: dict[str, str] | None = None, **modes: dict[str, torch.Tensor]) -> Left:
    """Records of one exercise by mode ("other_eager": the mode with a blank)."""
    named = {mode.replace("_", " "): tensors for mode, tensors in modes.items()}
    records = {(exercise.name, m): Record(exercise.name, m, t, (), words or {}) for m, t in named.items()}
    return Left("done", "", {}, records)


# --- rows


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def side(exercise: Exercise, **more: torch.Tensor) -> Left:
    shape = exercise.steps, exercise.rows
    return left(exercise, eager={"logits": normal(1, *shape, 8), "hidden": normal(2, *shape, 8), **more})


def test_only_exercises_whose_rows_float64_has_are_measured_and_judged() -> None:
    both = [GIVEN, FREELY]
    exact = side(GIVEN, logits=normal(3, 3, 2, 8), hidden=normal(4, 3, 2, 8))
    found = rules_rows.measure(both, side(GIVEN), exact, "cpu")
    assert list(found) == [KEY]
    judged = rules_rows.judge(both, found, found)
    assert list(judged.numbers["exercises"]) == [" ".join(KEY)] and not judged.breaches


def test_the_tokens_of_a_verify_step_belong_to_one_sequence() -> None:
    wide = replace(GIVEN, q=2)
    (found,) = rules_rows.measure([wide], side(wide), side(wide), "cpu").values()
    assert found.rows.sequence.tolist() == [0, 0, 1, 1] * 3


def test_states_are_compared_checkpoint_by_checkpoint() -> None:
    drifts = replace(GIVEN, states=2)
    three, two = (side(drifts, states=torch.ones(n, 1, 2, 4, dtype=torch.float64)) for n in (3, 2))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        rules_rows.measure([drifts], three, two, "cpu")
    (found,) = rules_rows.measure([drifts], two, two, "cpu").values()
    assert found.states is not None and found.states.tolist() == [[[0.0, 0.0]]] * 2


def measured(
    hidden: Sequence[float],
    *,
    blocks: Sequence[float] = (1.0, 1.0, 1.0),
    sequence: Sequence[int] | None = None,
    states: torch.Tensor | None = None,
    other: Sequence[float] | None = None,
) -> Measured:
    """Rows with these hidden distances; their blocks' and, unless `other` says more, all else is 1."""
    x = torch.tensor(hidden, dtype=torch.float64)
    names = torch.tensor(sequence if sequence is not None else [0] * len(x))
    table, fine = torch.tensor(blocks, dtype=torch.float64).repeat(len(x), 1), torch.isfinite(x)
    rest = torch.tensor(other, dtype=torch.float64) if other else torch.ones(len(x), dtype=torch.float64)
    rows = Rows(names, rest, x, rest, rest, table, torch.ones(len(x), dtype=torch.bool), fine)
    return Measured(rows, rows, states)


def judged(tested: Measured, stock: Measured, exercise: Exercise = GIVEN) -> Finding:
    return rules_rows.judge([exercise], {(exercise.name, EAGER): tested}, {(exercise.name, EAGER): stock})


ONE = measured([1.0] * 6)
DRIFTS = replace(GIVEN, states=2)


def single(tested: Measured, stock: Measured = ONE) -> list[str]:
    """What the rules of one exercise alone say: its states keep it out of the pool."""
    return [b.message for b in judged(tested, stock, DRIFTS).breaches]


def test_an_exercise_right_at_its_limits_passes_and_just_above_does_not() -> None:
    more = 1 + 1e-9
    assert single(measured([limits.ALONE] * 6)) == []
    assert any("the hidden rows are 2.50x" in line for line in single(measured([limits.ALONE * more] * 6)))
    assert single(measured([1.0] * 6, blocks=(1.0, limits.BLOCK_SINGLE, 1.0))) == []
    (hidden, logits) = single(measured([1.0] * 6, blocks=(1.0, limits.BLOCK_SINGLE * more, 1.0)))
    assert "columns 128 to 255 of the hidden rows" in hidden and "columns 128 to 255 of the logits" in logits
    two = [0, 0, 0, 1, 1, 1]
    far = [1.0, 1.0, 1.0, limits.SEQUENCE, 9.0, 9.0]
    assert not any(
        "sequence" in line for line in single(measured(far, sequence=two), measured([1.0] * 6, sequence=two))
    )
    far[3] *= more
    assert any(
        "sequence 1 is" in line for line in single(measured(far, sequence=two), measured([1.0] * 6, sequence=two))
    )


def test_one_block_is_held_against_the_middle_one_in_an_exercise_and_against_stock_in_the_pool() -> None:
    """What all columns share is another rule's."""
    thrice = measured([1.0] * 6, blocks=(3.0, 3.0, 3.3))
    values = judged(thrice, ONE).numbers
    assert values["exercises"][" ".join(KEY)]["block"] == [2, 1.1]
    assert values["exercises"][" ".join(KEY)]["logit_block"] == [2, 1.1]
    pooled = values["modes"][EAGER]
    assert (pooled["block of hidden rows"], pooled["block of logits"]) == ([2, 3.3], [2, 3.3])
    assert pooled["stock"] == {"logits": 1.0, "hidden": 1.0, "kl": 1.0, "logit_error": 1.0}
    said = [b.message for b in judged(thrice, ONE).breaches]
    assert said == [
        "eager: columns 256 to 383 of the hidden rows are 3.30x as far from float64 as stock's, allowed 1.50x",
        "eager: columns 256 to 383 of the logits are 3.30x as far from float64 as stock's, allowed 1.50x",
    ]


def test_a_sequence_is_held_against_stocks_usual_row_where_stock_was_lucky_there() -> None:
    two = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    lucky = measured([1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0], sequence=two)
    unlucky = measured([1.0, 1.0, 1.0, 8.0, 8.0, 8.0, 1.0, 1.0, 1.0], sequence=two)
    mine = measured([0.8, 0.8, 0.8, 0.9, 0.9, 0.9, 0.7, 0.7, 0.7], sequence=two)
    bad = measured([0.8, 0.8, 0.8, 16.0, 16.0, 16.0, 0.7, 0.7, 0.7], sequence=two)
    place = " ".join((DRIFTS.name, EAGER))
    assert judged(mine, lucky, DRIFTS).numbers["exercises"][place]["sequence"] == [1, 0.9]
    assert judged(bad, unlucky, DRIFTS).numbers["exercises"][place]["sequence"] == [1, 2.0]


def test_where_stock_is_exact_a_sequence_that_is_exact_too_is_as_near_and_any_other_infinitely_far() -> None:
    two, place = [0, 0, 0, 1, 1, 1], " ".join((DRIFTS.name, EAGER))
    exact = measured([0.0] * 6, sequence=two)
    assert judged(exact, exact, DRIFTS).breaches == ()
    assert judged(exact, exact, DRIFTS).numbers["exercises"][place]["sequence"] == [1, 1.0]
    one_row = measured([1e-9, 0.0, 1e-9, 0.0, 0.0, 0.0], sequence=two)  # its best row is exact
    assert judged(one_row, exact, DRIFTS).numbers["exercises"][place]["sequence"] == [1, 1.0]
    every_row = measured([1e-9, 1e-9, 1e-9, 0.0, 0.0, 0.0], sequence=two)
    found = judged(every_row, exact, DRIFTS)
    assert found.numbers["exercises"][place]["sequence"] == [0, float("inf")]
    assert any(f"{place}: sequence 0 is, at every step, infx as far" in b.message for b in found.breaches)


def test_an_exercise_with_rows_that_are_not_finite_is_refused_for_them_alone() -> None:
    found = judged(measured([1.0, torch.inf, 9.0, 1.0, torch.inf, 1.0]), ONE, DRIFTS)
    place = " ".join((DRIFTS.name, EAGER))
    assert [b.message for b in found.breaches] == [f"{place}: 2 of 6 rows are not finite"]
    assert found.numbers["exercises"][place] == {"rows": 6, "not_finite": 2}


def test_a_pool_right_at_its_limits_passes_and_just_above_does_not() -> None:
    more = 1 + 1e-9
    at = measured([limits.POOLED] * 6, other=[limits.POOLED] * 6, blocks=(1.0, 1.0, limits.BLOCK))
    assert judged(at, ONE).breaches == ()
    above = measured([limits.POOLED * more] * 6, other=[limits.POOLED * more] * 6)
    said = {b.message.split(" are ")[0] for b in judged(above, ONE).breaches}
    assert said == {"eager: logits", "eager: hidden", "eager: logit_error"}, "kl may be the square"
    wide = measured([1.0] * 6, blocks=(1.0, 1.0, limits.BLOCK * more))
    assert {b.message.split(" of the ")[1].split(" are ")[0] for b in judged(wide, ONE).breaches} == {
        "hidden rows", "logits",
    }  # fmt: skip


def test_a_row_ten_times_as_far_as_stock_usually_is_counts_as_near() -> None:
    edge = measured([1.0, 1.0, 1.0, 1.0, limits.FAR, limits.FAR * 1.001])
    far = judged(edge, ONE).numbers["modes"][EAGER]["far"]
    assert (far["candidate"], far["stock"], far["losses"], far["items"]) == (0.8333, 1.0, 1, 6)
    far = judged(ONE, edge).numbers["modes"][EAGER]["far"]
    assert (far["candidate"], far["stock"], far["wins"]) == (1.0, 0.8333, 1)


def drifting(*worst: float) -> Measured:
    """Two sequences whose states are this far from float64, checkpoint by checkpoint."""
    return measured([1.0] * 6, states=torch.tensor(worst, dtype=torch.float64).view(-1, 1, 1).expand(-1, 1, 2))


def test_states_right_at_their_limits_pass_and_just_above_do_not() -> None:
    more, still = 1 + 1e-9, drifting(1.0, 1.0)
    assert single(drifting(limits.DRIFT, limits.DRIFT), still) == []
    (said,) = single(drifting(limits.DRIFT * more, limits.DRIFT), still)
    assert "states at checkpoint 1 of 2 are 1.50x" in said
    assert single(drifting(1.0, limits.GROWTH), still) == []
    (said,) = single(drifting(1.0, limits.GROWTH * more), still)
    assert "grows 1.35x from the first to the last checkpoint" in said
    numbers = judged(drifting(0.5, 0.6), still, DRIFTS).numbers
    assert numbers["drift"][" ".join((DRIFTS.name, EAGER))] == {
        "candidate": [0.5, 0.6], "stock": [1.0, 1.0], "slope": [0.1, 0.0], "growth": 1.2,
    }  # fmt: skip
    assert "modes" not in numbers, "an exercise with states is not pooled"
    assert "drift" not in judged(ONE, ONE).numbers


def test_states_that_are_not_finite_are_refused_as_such() -> None:
    (said,) = single(drifting(1.0, torch.inf), drifting(1.0, 1.0))
    assert said.endswith("states of 2 sequences and checkpoints are not finite")


def test_states_that_one_side_lacks_are_not_compared() -> None:
    assert single(drifting(9.0, 9.0), ONE) == [] == single(ONE, drifting(0.1, 0.1))


# --- tokens


def ids(length: int, count: int, at: int) -> dict[str, torch.Tensor]:
    """Sequences of zeros that all turn to ones at a step."""
    return {"tokens": (torch.arange(length) >= at).long()[:, None].expand(length, count)}


def test_generation_that_float64_does_not_run_is_held_against_stock_whatever_else_is_there() -> None:
    mine, own = {**ids(50, 16, 30), "finite": torch.full((50, 16), True)}, ids(50, 16, 50)
    candidate, stock = left(FREELY, eager=mine), left(FREELY, eager=own, other_eager=ids(50, 32, 40))
    found = rules_tokens.free(FREELY, EAGER, candidate, stock, left(FREELY))
    assert (found.numbers["departures"], found.numbers["watched"]) == ([16, 16], [16 * 31, 16 * 41])
    known = replace(FREELY, other=0)
    candidate, stock = left(known, eager=mine), left(known, eager=own, other_eager=ids(50, 16, 40))
    assert rules_tokens.free(known, EAGER, candidate, stock, None).numbers == found.numbers
    assert f"{OTHER} {EAGER}" == "other eager"


def hazards(exact: float, paired: float) -> Hazards:
    return Hazards(2.0, Estimate(2.0, exact, 4.0), Estimate(2.0, paired, 3.0), (5, 2), (100, 90), (9.0, 9.5), 50)


def test_of_two_intervals_the_lower_bound_that_proves_less_decides_and_at_the_limit_it_passes() -> None:
    def refused(*low: float) -> Finding:
        return rules_tokens._refused(AGREEMENT, "it", hazards(*low))

    assert refused(limits.HAZARD, 1.9).breaches == () == refused(1.9, limits.HAZARD).breaches
    assert (
        [b.code for b in refused(1.2501, 1.9).breaches] == [AGREEMENT] == [b.code for b in refused(1.9, 1.26).breaches]
    )
    assert refused(1.1, 1.9).numbers["hazard"] == [2.0, 1.1, 4.0]


def answered(kind: str, items: int, wrong: Sequence[int], stock_wrong: Sequence[int]) -> tuple[Any, ...]:
    """An exercise and what the sides answered: these items wrong, the others right."""
    exercise = Exercise(kind, WAY, 64, 64, 4, (EAGER,), items=items, context=64, shortest=True)
    asked = [item for batch in questions(exercise, SEEDS) for item in batch]
    rows = [[[0 if i in bad else 1] for i in range(len(asked))] for bad in (wrong, stock_wrong)]
    return exercise, EAGER, *(left(exercise, eager={"answers": padded(r)}) for r in rows), SEEDS


def says_one(item: Item, said: Sequence[int]) -> bool:
    return list(said) == [1]


def test_a_task_that_stock_answers_nineteen_times_of_twenty_is_gated() -> None:
    found = rules_tokens.tasks(*answered(TASKS, 100, (), range(0, 100, 20)), says_one, 0.01)
    assert found.numbers["gated"]["items"] == 100 and len(found.numbers["gated"]["tasks"]) == 5


def test_of_tasks_that_stock_cannot_answer_the_best_is_named() -> None:
    missed = [i for task in range(5) for i in range(20 * task, 20 * task + 2 + (task != 3))]
    found = rules_tokens.tasks(*answered(TASKS, 100, (), missed), says_one, 0.01)
    third = list(found.numbers)[3]
    assert found.unjudged[0].endswith(
        f"stock answers no task 95% of the time; best: {third}, 90.0%; train the small model longer"
    )


def test_a_loss_right_at_what_is_allowed_passes_and_the_message_has_the_numbers() -> None:
    given = answered(TASKS, 100, (5, 30), ())
    low = lower_bound(Pairs(98, 2, 0, 0), limits.ITEMS_CONFIDENCE)
    assert rules_tokens.tasks(*given, says_one, -low).breaches == ()
    (refused,) = rules_tokens.tasks(*given, says_one, -low * 0.999).breaches
    assert refused.message.endswith(
        f"98.00% of 100 items right, stock 100.00%; the difference may be {low:.2%}, allowed {low * 0.999:.0%}"
    )


def test_every_item_has_an_answer_of_each_side() -> None:
    exercise, mode, mine, stock, seeds = answered(TASKS, 100, (), ())
    fewer = left(exercise, eager={"answers": mine.of(exercise, mode).tensors["answers"][:-1]})
    for sides in ((fewer, stock), (mine, fewer), (fewer, fewer)):
        with pytest.raises(ValueError, match=r"shorter|longer"):
            rules_tokens.tasks(exercise, mode, *sides, seeds, says_one, 0.01)


def test_an_answer_ends_at_its_padding_and_may_hold_the_first_token() -> None:
    record = Record("e", EAGER, {"answers": torch.tensor([[0, 5, -1], [1, -1, -1], [7, 0, 0]])}, (), {})
    assert rules_tokens._rows(record) == [[0, 5], [1], [7, 0, 0]]


GRAMMAR = Exercise(CONSTRAINED, WAY, 16, 16, 64, (EAGER,), items=16, shortest=True)
(ASKED,) = questions(GRAMMAR, SEEDS)
RIGHT = {"answers": padded([list(item.answer) for item in ASKED]), "not_finite": torch.tensor([0])}


def test_a_grammar_that_one_side_lacks_leaves_nothing_to_judge() -> None:
    lacking, whole = left(GRAMMAR, {"lacks": "needs a library"}, eager={}), left(GRAMMAR, eager=RIGHT)
    for sides in ((lacking, whole), (whole, lacking)):
        found = rules_tokens.constrained(GRAMMAR, EAGER, *sides, SEEDS)
        assert found.breaches == () and found.unjudged == (f"{GRAMMAR.name} {EAGER}: needs a library",)


def test_outputs_without_finite_logits_are_refused() -> None:
    broken = left(GRAMMAR, eager={**RIGHT, "not_finite": torch.tensor([3])})
    found = rules_tokens.constrained(GRAMMAR, EAGER, broken, left(GRAMMAR, eager=RIGHT), SEEDS)
    assert [b.message for b in found.breaches] == [f"{GRAMMAR.name} eager: logits of 3 rows are not finite"]
    assert found.numbers == {"not_finite": 3}


def test_of_an_output_that_does_not_fit_eighty_characters_are_shown() -> None:
    long = [*encode('{"' + "k" * 100 + '": 1}'), EOS]
    assert len(decode(long[:-1])) > 80
    rows = padded([long, *(list(item.answer) for item in ASKED[1:])])
    mine = left(GRAMMAR, eager={"answers": rows, "not_finite": torch.tensor([0])})
    found = rules_tokens.constrained(GRAMMAR, EAGER, mine, left(GRAMMAR, eager=RIGHT), SEEDS)
    said = f"{GRAMMAR.name}: 1 outputs do not follow their schema, the first: {decode(long[:-1])[:80]}"
    assert [b.message for b in found.breaches] == [said]


def test_every_item_under_a_grammar_has_an_output() -> None:
    fewer = left(GRAMMAR, eager={**RIGHT, "answers": RIGHT["answers"][:-1]})
    with pytest.raises(ValueError, match=r"shorter|longer"):
        rules_tokens.constrained(GRAMMAR, EAGER, fewer, fewer, SEEDS)


DRAWS = Exercise(SAMPLING, WAY, 64, 64, 64, (EAGER,), draws=64)


def drawn(*cells: Sequence[int]) -> Left:
    """Counts [2 settings, 2 views, cells]: those of setting and view (0, 0), (0, 1), (1, 0), (1, 1)."""
    counts = torch.tensor(cells).view(2, 2, -1)
    return left(DRAWS, eager={"counts": counts, "not_drawn": torch.tensor([0])})


def test_the_level_is_shared_out_and_cells_that_nobody_reached_say_nothing() -> None:
    flat = [100, 100, 100, 0]
    mine = drawn(flat, [101, 100, 100, 0], [102, 100, 100, 0], [103, 100, 100, 0])
    found = rules_tokens.sampling(DRAWS, EAGER, mine, drawn(flat, flat, flat, flat))
    assert found.breaches == () and found.numbers["draws"] == 300
    assert found.numbers["alpha"] == limits.SAMPLING_ALPHA / 4
    assert [freedom for _, freedom, _ in found.numbers["statistic_freedom_p"]] == [2, 2, 2, 2]
    statistic, _, p = found.numbers["statistic_freedom_p"][0]
    assert (statistic, p) == (0.0, 1.0)


def test_a_view_that_differs_is_named_with_its_settings() -> None:
    flat = [100, 100, 100, 100]
    mine = drawn(flat, flat, flat, [160, 40, 100, 100])
    (breach,) = rules_tokens.sampling(DRAWS, EAGER, mine, drawn(flat, flat, flat, flat)).breaches
    assert "with stock, by ranks at settings 1 (p = " in breach.message and "ids" not in breach.message
    assert breach.message.endswith("; allowed p 2.5e-05") and GRAPH not in breach.message


def test_a_cell_that_one_side_reached_once_counts() -> None:
    flat, once = [100, 100, 100, 0], [100, 100, 100, 1]
    found = rules_tokens.sampling(DRAWS, EAGER, drawn(once, flat, flat, flat), drawn(flat, flat, flat, flat))
    (first, *others) = (statistic for statistic, _, _ in found.numbers["statistic_freedom_p"])
    assert first > 0 and others == [0.0, 0.0, 0.0]
