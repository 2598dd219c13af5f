"""The distances of the pass rule, and what of them is allowed, against numbers worked out by hand."""

import math

import pytest
import torch

from kgen.contract.tolerance import Errors, compare, relative_l2

INF, NAN = math.inf, math.nan


def relative(got: list[float], want: list[float]) -> float:
    return relative_l2(torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize(
    ("got", "want", "distance"),
    [
        ([3, 0], [0, 4], 1.25),  # a difference of 5 against a norm of 4
        ([0, 0], [0, 4], 1.0),
        ([0, 0], [0, 0], 0.0),
        ([0, 1], [0, 0], INF),
        ([0, -1], [0, 0], INF),
        ([INF, 1], [INF, 2], 0.5),  # where neither is finite, nothing is measured
        ([NAN, 1], [INF, 2], 0.5),
        ([INF, 2], [1, 2], INF),
        ([1, 2], [NAN, 2], INF),
    ],
)
def test_the_relative_distance_is_the_one_of_the_formula(got: list[float], want: list[float], distance: float) -> None:
    assert relative(got, want) == distance


ROUNDED = torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]], dtype=torch.float64)
CANDIDATE = torch.tensor([[3.0, 5.0], [0.0, 2.0], [6.0, 8.0]])
TRUE = torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.5]], dtype=torch.float64)
STOCK = torch.tensor([[3.0, 4.0], [0.0, 0.5], [6.0, 8.0]])


@pytest.mark.parametrize("shape", [(3, 2), (3, 1, 2), (3, 2, 1)])
def test_every_distance_of_an_output_is_the_one_worked_out_by_hand(shape: tuple[int, ...]) -> None:
    got = compare(*(t.reshape(shape) for t in (CANDIDATE, STOCK, ROUNDED, TRUE)))
    norm, true_norm = math.sqrt(9 + 16 + 36 + 64), math.sqrt(9 + 16 + 36 + 8.5**2)
    want = Errors(
        candidate_true=math.sqrt(1 + 4 + 0.25) / true_norm,
        stock_true=math.sqrt(0.25 + 0.25) / true_norm,
        rounded_true=0.5 / true_norm,
        candidate_rounded=math.sqrt(5) / norm,
        stock_rounded=0.5 / norm,
        max_abs_rms=2 / math.sqrt(125 / 6),
        worst_row=2.0,  # the zero row: its error as it is, since there is nothing to relate it to
        bit_exact=4 / 6,
    )
    assert vars(got) == pytest.approx(vars(want), rel=1e-12)


def test_the_worst_row_is_relative_to_its_own_norm() -> None:
    wide = torch.tensor([[30.0, 40.0, 0.0], [0.3, 0.0, 0.4]], dtype=torch.float64)
    near = wide + torch.tensor([[0.0, 0.0, 5.0], [0.1, 0.0, 0.0]], dtype=torch.float64)
    got = compare(near, wide, wide, wide)
    assert got.worst_row == pytest.approx(0.1 / 0.5, rel=1e-12)  # 5 of 50 is less
    assert got.max_abs_rms == pytest.approx(5 / math.sqrt((50**2 + 0.5**2) / 6), rel=1e-12)


def test_an_output_that_should_be_zero_has_a_finite_record() -> None:
    zero = torch.zeros(2, 3, dtype=torch.float64)
    got = compare(zero, zero, zero, zero)
    assert (got.candidate_true, got.max_abs_rms, got.worst_row, got.bit_exact) == (0.0, 0.0, 0.0, 1.0)


def errors(**changed: float) -> Errors:
    plain = dict.fromkeys(Errors.__dataclass_fields__, 0.0)
    return Errors(**{**plain, **changed})


@pytest.mark.parametrize(("stock", "rounded"), [(0.4, 0.8), (0.8, 0.4)])
def test_a_candidate_may_add_a_quarter_to_the_larger_of_two_distances(stock: float, rounded: float) -> None:
    assert errors(stock_true=stock, rounded_true=rounded).allowed_true() == 1.0


@pytest.mark.parametrize(("floor", "allowed"), [(0.25, 0.5), (0.75, 0.75)])
def test_near_the_rounded_reference_the_floor_or_stocks_distance_and_a_quarter_is_allowed(
    floor: float, allowed: float
) -> None:
    assert errors(stock_rounded=0.4).allowed_rounded(floor) == allowed


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"candidate_true": 1.0, "candidate_rounded": 0.5}, ""),  # exactly what is allowed
        ({"candidate_true": 0.0, "candidate_rounded": 0.0}, ""),
        ({"candidate_true": 1.0001}, "the float64 reference is 1.000e+00, allowed 1.000e+00"),
        ({"candidate_true": 2.0}, "the float64 reference is 2.000e+00, allowed 1.000e+00"),
        ({"candidate_rounded": 0.5001}, "the rounded reference is 5.001e-01, allowed 5.000e-01"),
        ({"candidate_rounded": 2.0}, "the rounded reference is 2.000e+00, allowed 5.000e-01"),
        ({"candidate_true": NAN}, "the float64 reference is nan"),
        ({"candidate_rounded": NAN}, "the rounded reference is nan"),
    ],
)
def test_both_parts_of_the_rule_hold_up_to_their_limit(changed: dict[str, float], says: str) -> None:
    line = errors(stock_true=0.8, stock_rounded=0.4, **changed).complaint(0.1)
    assert says in line if says else line == ""
