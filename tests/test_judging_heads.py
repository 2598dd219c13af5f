"""Rules on what the attention gives, right at their limits, on numbers written by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kgen.gates.modeleval import limits, rules_rows
from kgen.gates.modeleval.breach import LOGITS, LONG_CONTEXT, Finding
from kgen.gates.modeleval.distance import Rows
from kgen.gates.modeleval.exercise import EAGER, FILLED, FORCED, Exercise, Way
from kgen.gates.modeleval.rules_rows import Measured
from kgen.gates.modeleval.sides import Left, Record

KEEPS = Exercise(FILLED, Way("nano-random"), 2, 2, 3, (EAGER,), heads=True)
PLACE = f"{KEEPS.name} {EAGER}"


def rows(hidden: Sequence[float], blocks: Sequence[float] = (1.0, 1.0, 1.0), steps: int = 6) -> Rows:
    """These distances of the kept outputs, `steps` rows of a sequence; all else is 1."""
    x = torch.tensor(hidden, dtype=torch.float64)
    ones, yes = torch.ones_like(x), torch.ones(len(x), dtype=torch.bool)
    table = torch.tensor(blocks, dtype=torch.float64).repeat(len(x), 1)
    return Rows(torch.arange(len(x)) // steps, ones, x, ones, ones, table, yes, yes)


ONE = Measured(rows([1.0] * 6), rows([1.0] * 6), None)


def judged(heads: Rows, stock: Rows, exercise: Exercise = KEEPS) -> Finding:
    plain = rows([1.0] * len(heads.hidden), steps=int((heads.sequence == 0).sum()))
    sides = (Measured(plain, plain, None, side) for side in (heads, stock))
    return rules_rows.judge([exercise], *({(exercise.name, EAGER): side} for side in sides))


def said(heads: Rows, stock: Rows) -> list[str]:
    found = judged(heads, stock)
    assert {b.code for b in found.breaches} <= {LOGITS}
    return [b.message.removeprefix(f"{PLACE}: ") for b in found.breaches]


def test_what_the_attention_gives_is_held_to_the_limits_of_hidden_rows() -> None:
    more, usual = 1 + 1e-9, rows([1.0] * 6)
    assert said(rows([limits.ALONE] * 6), usual) == []
    (line,) = said(rows([limits.ALONE * more] * 6), usual)
    assert line == "the attention's outputs are 2.50x as far from float64 as stock's, allowed 2.50x"
    assert said(rows([1.0] * 6, (1.0, limits.BLOCK_SINGLE, 1.0)), usual) == []
    (line,) = said(rows([1.0] * 6, (1.0, limits.BLOCK_SINGLE * more, 1.0)), usual)
    assert line.startswith("beside the others, columns 128 to 255 of the attention's outputs are 1.80x")
    pairs = rows([1.0] * 12, steps=2)
    assert said(rows([limits.SINGLE] * 12, steps=2), pairs) == []
    (line,) = said(rows([limits.SINGLE * more] * 12, steps=2), pairs)
    assert line == "the attention's outputs are surely 1.60x as far from float64 as stock's, allowed 1.60x"


def test_the_numbers_of_what_the_attention_gives_are_in_the_evidence_where_it_is_kept() -> None:
    found = judged(rows([4.0] * 6, (2.0, 2.0, 2.2)), rows([2.0] * 6)).numbers["exercises"][PLACE]
    assert found["heads"] == {"outputs": [2.0, 0.0, float("inf")], "stock": 2.0, "block": [2, 1.1]}
    assert found["hidden"] == [1.0, 0.0, float("inf")]
    other = replace(KEEPS, heads=False)
    key = other.name, EAGER
    assert "heads" not in rules_rows.judge([other], {key: ONE}, {key: ONE}).numbers["exercises"][" ".join(key)]


def test_the_attentions_outputs_are_measured_where_an_exercise_keeps_them() -> None:
    def side(exercise: Exercise, **more: torch.Tensor) -> Left:
        gen = torch.Generator().manual_seed(1)
        plain = {n: torch.randn((3, 2, 8), generator=gen, dtype=torch.float64) for n in ("logits", "hidden")}
        record = Record(exercise.name, EAGER, {**plain, **more}, (), {})
        return Left("done", "", {}, {(exercise.name, EAGER): record})

    ones = torch.ones(3, 2, 256, dtype=torch.float64)
    tilted = ones.clone()
    tilted[:, 1, 128:] *= 1.5
    (found,) = rules_rows.measure([KEEPS], side(KEEPS, heads=tilted), side(KEEPS, heads=ones), "cpu").values()
    assert found.heads is not None and found.rows.hidden.tolist() == [0.0] * 6
    assert found.heads.blocks.tolist() == [[0.0, 0.0], [0.0, 0.5]] * 3
    assert found.heads.hidden.tolist() == pytest.approx([0.0, 0.5 / 2**0.5] * 3)
    other = replace(KEEPS, heads=False)
    (bare,) = rules_rows.measure([other], side(other, heads=tilted), side(other), "cpu").values()
    assert bare.heads is None


def test_hidden_rows_that_are_far_behind_a_context_are_its_fault_only_where_no_heads_are_kept() -> None:
    far, plain = rows([9.0] * 6), replace(KEEPS, heads=False)
    usual = replace(ONE, heads=ONE.rows)
    forced = replace(plain, kind=FORCED, states=1)  # states keep it out of the pool
    for exercise, code in ((KEEPS, LOGITS), (plain, LONG_CONTEXT), (forced, LOGITS)):
        key = exercise.name, EAGER
        found = rules_rows.judge([exercise], {key: replace(usual, rows=far)}, {key: usual})
        assert {b.code for b in found.breaches} == {code}
