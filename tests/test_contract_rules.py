"""Each kind of output rule passes what it should and refuses what it should, by hand-made numbers."""

import pytest
import torch

from kgen.contract import rules
from kgen.contract.rules import ByOp, Codes, Exact, Judged, MaxAbs, RelL2, Rule, same_bits
from kgen.contract.tensors import Role, TensorSpec


def judge(rule: Rule, got: torch.Tensor, want: torch.Tensor, stock: torch.Tensor | None = None, steps: int = 1) -> str:
    rounded = want.double()
    true = rounded * 1.5  # far away, as the unrounded values of an 8-bit output may be: this part never decides here
    return rule.judge(got, want if stock is None else stock, rounded, true, steps).complaint


ONES = torch.ones(4, 8)


def test_relative_l2_allows_its_floor_and_the_drift_floor_only_after_several_steps() -> None:
    rule, stock, true = RelL2(1e-3, drift=1e-1), ONES, ONES.double() * 1.01
    got = (ONES * 1.01).double()  # right on the true reference, 1e-2 from the rounded one
    assert "1.000e-03" in rule.judge(got, stock, stock.double(), true, 1).complaint
    assert not rule.judge(got, stock, stock.double(), true, 2).complaint


def test_exact_sees_a_single_bit_and_the_sign_of_zero() -> None:
    zero = torch.zeros(4, dtype=torch.bfloat16)
    assert not judge(Exact(), zero, zero)
    assert judge(Exact(), -zero, zero)
    assert Exact().judge(-zero, zero, zero.double(), zero.double(), 1).code == "exact"
    assert Exact().judge(zero, zero, zero.double(), zero.double(), 1) == Judged(None, 0.0, 0.0, "", "")


def codes(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).to(torch.float8_e4m3fn)


def test_codes_count_representable_values_and_share_zero() -> None:
    rule = Codes(unequal=0.5, floor=1.0)
    want = codes([1.0, 2.0, 0.0, -448.0])
    assert not judge(rule, codes([1.125, 2.0, -0.0, -448.0]), want)  # 1.125 is the value after 1
    assert "steps" in judge(rule, codes([1.25, 2.0, 0.0, -448.0]), want)
    assert "steps" in judge(rule, codes([float("nan"), 2.0, 0.0, -448.0]), want)


def test_codes_refuse_too_many_neighbours_unless_stock_has_as_many() -> None:
    want, one_off = codes([1.0] * 8), codes([1.125] * 3 + [1.0] * 5)
    rule = Codes(unequal=0.125, floor=1.0)
    assert "37.500%" in judge(rule, one_off, want)
    assert not judge(rule, one_off, want, stock=one_off)


def test_a_code_may_be_as_far_away_as_stocks_own_and_no_farther() -> None:
    rule, want, stock = Codes(unequal=1.0, floor=10.0), codes([1.0, 2.0]), codes([1.25, 2.0])
    assert not judge(rule, stock, want, stock=stock)
    assert "3 steps from the rounded reference, allowed 2" in judge(rule, codes([1.375, 2.0]), want, stock=stock)


def test_codes_cross_the_sign_by_the_number_of_values_between() -> None:
    rule = Codes(unequal=1.0, floor=10.0)
    tiny = 2.0**-9  # the smallest e4m3 value
    assert not judge(rule, codes([4.0, tiny]), codes([4.0, 0.0]))
    assert "2 steps" in judge(rule, codes([4.0, tiny]), codes([4.0, -tiny]))


@pytest.mark.parametrize(("got", "passes"), [(1.001, True), (1.003, False), (float("nan"), False)])
def test_largest_error_is_an_absolute_limit(got: float, passes: bool) -> None:
    assert (not judge(MaxAbs(2e-3), torch.tensor([got]), torch.tensor([1.0]))) is passes


def test_largest_error_accepts_equal_infinities() -> None:
    lost = torch.tensor([float("-inf")])
    assert not judge(MaxAbs(1e-3), lost, lost)
    assert judge(MaxAbs(1e-3), torch.tensor([-1e38]), lost)


def test_largest_error_of_a_tensor_counts_and_both_limits_hold_up_to_their_value() -> None:
    want, stock = torch.zeros(3), torch.tensor([0.0, 0.8, -0.4])
    assert not judge(MaxAbs(0.5), torch.tensor([0.1, -0.5, 0.0]), want)
    assert "up to 5.001e-01, allowed 5.000e-01" in judge(MaxAbs(0.5), torch.tensor([0.1, -0.5001, 0.0]), want)
    assert not judge(MaxAbs(0.5), torch.tensor([1.0, 0.0, 0.0]), want, stock=stock)  # 1.25 times stock's
    refused = MaxAbs(0.5).judge(torch.tensor([1.1, 0.0, 0.0]), stock, want.double(), want.double(), 1)
    assert (refused.code, refused.allowed_rounded, refused.errors) == ("error", pytest.approx(1.0, rel=1e-6), None)
    assert refused.allowed_true == 0.0
    passed = MaxAbs(0.5).judge(want, want, want.double(), want.double(), 1)
    assert (passed.code, passed.complaint, passed.allowed_true, passed.allowed_rounded) == ("", "", 0.0, 0.5)


def test_an_output_without_elements_has_no_error() -> None:
    nothing = torch.zeros(0)
    assert MaxAbs(0.0).judge(nothing, nothing, nothing.double(), nothing.double(), 1) == Judged()
    assert rules._max_abs(nothing, nothing) == 0.0


def test_a_part_of_the_codes_that_differs_is_allowed_up_to_its_value() -> None:
    want, three = codes([1.0] * 8), codes([1.125] * 3 + [1.0] * 5)
    assert not judge(Codes(unequal=3 / 8, floor=1.0), three, want)
    assert "37.500% of the codes differ from the rounded reference, allowed 31.250%" in judge(
        Codes(unequal=0.01, floor=1.0), three, want, stock=codes([1.125] * 2 + [1.0] * 6)
    )


def test_codes_one_step_away_are_refused_by_the_distance_of_their_values() -> None:
    want, off = codes([1.0] * 8), codes([1.125] * 4 + [1.0] * 4)
    rounded = want.double()
    judged = Codes(unequal=1.0, floor=1e-3).judge(off, want, rounded, rounded * 1.5, 1)
    assert judged.code == "error" and "allowed 1.000e-03" in judged.complaint
    assert judged.allowed_rounded == 1e-3 and judged.errors is not None
    assert judged.allowed_true == pytest.approx(1.25 / 3, rel=1e-12)  # both others are a third away from the true one
    fine = Codes(unequal=1.0, floor=1.0).judge(off, want, rounded, rounded * 1.5, 1)
    assert (fine.code, fine.complaint) == ("", "")


def test_the_published_limits_of_codes_are_half_a_percent_and_four_thousandths() -> None:
    assert (Codes().unequal, Codes().floor) == (0.005, 4e-3)


def test_without_a_drift_floor_the_floor_holds_for_many_steps() -> None:
    got, true = (ONES * 1.01).double(), ONES.double() * 1.01
    judged = RelL2(1e-3).judge(got, ONES, ONES.double(), true, 64)
    assert judged.code == "error" and judged.allowed_rounded == 1e-3
    passed = RelL2(1e-3, drift=1e-1).judge(got, ONES, ONES.double(), true, 2)
    assert (passed.code, passed.allowed_rounded) == ("", 1e-1)
    assert passed.allowed_true == pytest.approx(1.25 * 0.01 / 1.01, rel=1e-6)


def test_equal_bits_are_bits_and_not_values() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert same_bits(nan, nan.clone()) and not same_bits(nan, -nan)
    grid = torch.arange(6.0).reshape(2, 3)
    assert same_bits(grid.T, grid.T.contiguous())


def test_by_op_leaves_everything_to_the_hard_rules() -> None:
    assert not judge(ByOp(), ONES * 7, ONES)


def test_a_contracts_text_grows_only_by_what_it_uses() -> None:
    plain = TensorSpec("x", "bf16", ("tokens", 8), Role.OUT, "x")
    assert plain.extra() == {} and "rule" not in repr(plain)
    used = TensorSpec("x", "e4m3", ("tokens", 8), Role.OUT, "x", rule=Codes(), pitched=True, padding=0)
    assert set(used.extra()) == {"rule", "pitched", "padding"}
