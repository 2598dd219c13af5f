"""The alpha-beta model of exchanges among ranks: what its fit finds, and what follows from it for more ranks."""

import pytest
from support.ranks_model import HOP_US, MORE, Model, fit, foretold, measured

SIZES = (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("alpha, beta", [(3.5, 6e-6), (0.5, 1e-4)])
def test_the_fit_finds_the_line_that_points_lie_on(alpha: float, beta: float) -> None:
    line = Model(alpha, beta)
    found = fit([(n, line.one_shot(2, n)) for n in SIZES])
    assert (found.alpha, found.beta) == (pytest.approx(alpha), pytest.approx(beta))


def test_one_size_fixes_no_line() -> None:
    with pytest.raises(ValueError, match="two sizes are needed"):
        fit([(8, 4.5), (8, 4.6)])


def test_a_point_is_foretold_without_itself() -> None:
    points = measured()
    for at, (tokens, us) in enumerate(points):
        moved = [*points[:at], (tokens, 10 * us), *points[at + 1 :]]
        assert foretold(moved)[tokens] == foretold(points)[tokens]


def test_all_points_of_the_record_are_foretold_within_a_third() -> None:
    """A coarse model: where it gets worse than this, its words on more ranks are worth nothing."""
    points = dict(measured())
    assert set(points) == set(SIZES)
    assert all(abs(told / points[tokens] - 1) < 1 / 3 for tokens, told in foretold(list(points.items())).items())


@pytest.mark.parametrize("ranks", MORE)
def test_both_shapes_take_as_long_where_one_gives_way_to_the_other(ranks: int) -> None:
    model = fit(measured())
    at = model.crossing(ranks)
    assert model.alpha + model.beta * (ranks - 1) * at * 7168 * 2 == pytest.approx(
        model.alpha + HOP_US + model.beta * 2 * (ranks - 1) / ranks * at * 7168 * 2
    )
    assert model.one_shot(ranks, 64) > model.two_shot(ranks, 64)


def test_two_ranks_receive_the_same_bytes_in_either_shape() -> None:
    model = fit(measured())
    assert model.crossing(2) == float("inf")
    assert all(model.two_shot(2, n) - model.one_shot(2, n) == pytest.approx(HOP_US) for n in SIZES)
