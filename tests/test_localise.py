"""Planted patterns are found from real tensors; noise has none; what comparisons have in common is said."""

import pytest
import torch

from kgen.gates.localise import Places, Where, across, localise

LIMIT = 4e-3
ROWS, COLUMNS = 16, 256


def drawn(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, COLUMNS, generator=generator, dtype=torch.float64).to(torch.bfloat16).double()


def found(got: torch.Tensor, want: torch.Tensor) -> Where:
    return localise(got, want, LIMIT, ("tokens", "hidden"))


def planted(name: str) -> torch.Tensor:
    """A wrong copy of the answer; every other number comes from another seed."""
    got, other = drawn(), drawn(1)
    if name == "column":
        got[:, 8::16] = other[:, 8::16]
    elif name == "row":
        got[5] = other[5]
    elif name == "tile":
        got[:, 64:128] = other[:, 64:128]
    elif name == "tail":
        got[:, -24:] = other[:, -24:]
    elif name == "last rows":
        got[12:] = other[12:]
    elif name == "part of a period":
        got.view(ROWS, -1, 16)[:, :, 8:] = other.view(ROWS, -1, 16)[:, :, 8:]
    elif name == "factor":
        got[:, :32] *= 1.05
    elif name == "sign":
        got[3] *= -1
    elif name == "zeros":
        got[:, 128:] = 0
    elif name == "nan":
        got[2, 7] = float("nan")
    elif name == "constant":
        got[4] = 3.0
    elif name == "exchanged":
        got[[2, 9]] = got[[9, 2]]
    elif name == "off by one token":
        got = got.roll(-1, 0)
        got[-1] = other[-1]
    elif name == "shifted":
        got = got.roll(1, 1)
    return got


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("column", "every 16th hidden from 8"),
        ("row", "only tokens 5"),
        ("tile", "hidden 64 to 127, 1 whole tile of 64"),
        ("tail", "the last 24 of 256 along hidden"),
        ("last rows", "the last 4 of 16 along tokens"),
        ("part of a period", "hidden 8 to 15 of every 16"),
        ("factor", "scaled by one factor, about 1.05"),
        ("sign", "the sign is turned"),
        ("zeros", "zeros"),
        ("nan", "NaN or inf in all wrong elements"),
        ("constant", "hold one value"),
        ("exchanged", "tokens 2 and 9 are exchanged"),
        ("off by one token", "off by +1 along tokens"),
        ("shifted", "shifted by one along the last axis"),
    ],
)
def test_a_planted_pattern_is_named(name: str, words: str) -> None:
    where = found(planted(name), drawn())
    assert words in "; ".join(where.patterns), where
    assert 0 < where.wrong < where.total or name in ("shifted", "off by one token")


def test_the_worst_positions_are_those_of_the_largest_errors() -> None:
    got = drawn()
    got[3, 200] += 50
    got[7, 11] -= 90
    assert found(got, drawn()).worst == ((7, 11), (3, 200))


def test_a_square_answer_the_other_way_round_is_transposed() -> None:
    want = drawn(2)[:, :ROWS].contiguous()
    assert found(want.T.contiguous(), want).patterns[0] == "transposed"


def test_one_wrong_expert_of_three_axes_is_named() -> None:
    want = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = want.clone()
    got[:, 2] += 1
    assert "only expert 2" in localise(got, want, LIMIT, ("tokens", "expert", "latent")).patterns


@pytest.mark.parametrize("seed", range(8))
def test_unrelated_numbers_have_no_pattern(seed: int) -> None:
    assert found(drawn(100 + seed), drawn(seed)).patterns == ("everywhere, and unlike the answer by no simple rule",)


@pytest.mark.parametrize("seed", range(8))
def test_wrong_elements_strewn_at_random_have_no_pattern(seed: int) -> None:
    got = drawn(seed)
    got[torch.rand(got.shape, generator=torch.Generator().manual_seed(seed)) < 0.02] += 1
    assert found(got, drawn(seed)).patterns == ()


def test_rounding_alone_is_no_wrong_element() -> None:
    want = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert found(want.to(torch.bfloat16), want).wrong == 0


@pytest.mark.parametrize("kept", [48, 60, 56])
def test_a_slice_of_the_sum_that_was_dropped_is_told_by_its_share(kept: int) -> None:
    generator = torch.Generator().manual_seed(6)
    x, w = (torch.randn(n, 64, generator=generator, dtype=torch.float64) for n in (ROWS, COLUMNS))
    where = found(x[:, :kept] @ w[:, :kept].T, x @ w.T)
    assert "were left out of each sum" in where.patterns[0]
    share = float(where.patterns[0].split("about ")[1].split()[0])
    assert share == pytest.approx(1 - kept / 64, rel=0.3)


def test_nothing_of_the_answer_is_said_but_positions_and_factors() -> None:
    got, want = planted("row"), drawn() + 1234.5
    text = str(found(got, want))
    assert not [v for v in want.reshape(-1).tolist() if f"{v:.4g}" in text]


def seen(*entries: tuple[int, str, int, float, bool]) -> Places:
    places = Places()
    for tokens, what, step, strain, failed in entries:
        places.note(tokens, what, "y", step, strain, failed)
    return places


def test_what_failing_calls_have_in_common_is_said() -> None:
    many = [(n, f, 1, 9.0 if n > 8 else 0.5, n > 8) for n in (1, 4, 8, 16, 64) for f in ("normal", "tiny")]
    assert across(seen(*many)._seen) == ["only when tokens > 8"]
    families = [(8, f, 1, 9.0 if f == "tiny" else 0.5, f == "tiny") for f in ("normal", "zero", "tiny")]
    assert across(seen(*families)._seen) == ["only on input tiny"]
    assert across(seen((8, "normal", 1, 0.5, False))._seen) == []
    assert across(seen(*[(n, "normal", 1, 9.0, True) for n in (1, 8)])._seen) == []


def test_an_error_that_grows_with_the_steps_drifts() -> None:
    steps = [(8, "normal", k, 0.2 * k, 0.2 * k > 1) for k in (1, 2, 16, 64)]
    assert "drifts with step: the error of y on normal grows 64 times from step 1 to 64" in across(seen(*steps)._seen)
    level = [(8, "normal", k, 3.0, True) for k in (1, 2, 16, 64)]
    assert across(seen(*level)._seen) == []
