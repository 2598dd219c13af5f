"""Draws from logits: rules by hand, distributions against exact probabilities, no influence of the batch."""

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.model.generation.homogeneity import fits, same_distribution
from kgen.model.generation.philox import philox, random_halves
from kgen.model.generation.sampling import Sampling, SamplingRows, draw, probabilities, scaled

INF, NAN = math.inf, math.nan
ALPHA = 1e-3  # the seeds are fixed, so a test passes always or never
DRAWS = 20_000


def steps(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def logs(*values: float) -> torch.Tensor:
    """Logits [1, n] whose softmax is the given probabilities."""
    return torch.tensor([[math.log(v) if v else -INF for v in values]])


def chances(logits: torch.Tensor, **sampling: float) -> list[float]:
    [row] = probabilities(logits, SamplingRows.of([Sampling(**sampling)])).tolist()  # type: ignore[arg-type]
    return [round(p, 9) for p in row]


def one(logits: torch.Tensor, sampling: Sampling, step: int = 0, mask: torch.Tensor | None = None) -> int:
    return int(draw(logits, SamplingRows.of([sampling]), steps(step), mask))


@pytest.mark.parametrize(  # the known answers that the authors of Philox publish with Random123
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: str) -> None:
    a, b, c, d = (steps(v) for v in counter)
    words = philox((a, b, c, d), (steps(key[0]), steps(key[1])))
    assert " ".join(f"{int(w):08x}" for w in words) == answer


def test_all_bits_of_seed_and_step_matter() -> None:
    seeds = [1 << n for n in range(63)]
    by_seed = random_halves(torch.tensor(seeds), torch.zeros(63, dtype=torch.int64))
    by_step = random_halves(torch.zeros(63, dtype=torch.int64), torch.tensor(seeds))
    pairs = {(int(a), int(b)) for halves in (by_seed, by_step) for a, b in zip(*halves, strict=True)}
    assert len(pairs) == 126 and all(0 <= n < 2**31 for pair in pairs for n in pair)


def test_the_random_numbers_are_uniform_and_each_is_independent_of_the_next() -> None:
    numbers = torch.arange(40_000)
    for halves in (random_halves(torch.full_like(numbers, 7), numbers), random_halves(numbers, numbers * 0)):
        for half in halves:
            bins = (half >> 27).tolist()  # 16 of them
            pairs = Counter(pairwise(bins))
            counts = [pairs[a, b] for a in range(16) for b in range(16)]
            assert fits(counts, [1 / 256] * 256, ALPHA).same


@given(
    total=st.one_of(st.integers(0, 2**58), st.sampled_from([1, 2**31 - 1, 2**31, 2**58])),
    halves=st.tuples(*[st.one_of(st.integers(0, 2**31 - 1), st.just(2**31 - 1))] * 2),
)
def test_scaling_by_the_random_number_is_exact(total: int, halves: tuple[int, int]) -> None:
    first, second = halves
    assert int(scaled(steps(total), steps(first), steps(second))) == (total * (first * 2**31 + second)) >> 62


def reference(logits: list[float], sampling: Sampling, step: int) -> int:
    """The documented rule in exact arithmetic, one row at a time, with Python's integers and sorting."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if sampling.temperature == 0:
        return ranked[0]
    best = logits[ranked[0]]
    weight = [round(2**40 * math.exp((v - best) / sampling.temperature)) for v in logits]
    kept = ranked[: sampling.top_k or None]
    total = sum(weight[i] for i in kept)
    prefix: list[int] = []
    for i in kept:
        if sampling.top_p == 1 or sum(weight[j] for j in prefix) < Fraction(sampling.top_p) * total:
            prefix.append(i)
    a, b = random_halves(steps(sampling.seed), steps(step))
    target = Fraction(int(a) * 2**31 + int(b), 2**62) * sum(weight[i] for i in prefix)
    below = 0
    for i in sorted(prefix):
        below += weight[i]
        if below > math.floor(target):
            return i
    raise AssertionError("u is below 1")


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-300, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 7, 50]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 1e-9]),
    seed=st.integers(0, 2**63 - 1),
)
LOGITS = st.lists(st.sampled_from([0.0, 1.0, 1.5, -2.0, 3.25, 30.0, -60.0]), min_size=9, max_size=9)


@given(row=LOGITS, sampling=SAMPLINGS, step=st.integers(0, 2**40))
@settings(max_examples=150, deadline=None)
def test_a_draw_is_the_documented_rule(row: list[float], sampling: Sampling, step: int) -> None:
    assert one(torch.tensor([row]), sampling, step) == reference(row, sampling, step)


def test_a_large_vocabulary_leaves_no_bits() -> None:
    # 2^18 equal logits: the sum of weights is 2^58, and the draw is the first 18 bits of u
    flat = torch.zeros(8, 2**18)
    rows = SamplingRows.of([Sampling(temperature=1.0, seed=s) for s in range(8)])
    first, _ = random_halves(torch.arange(8), torch.full((8,), 3))
    assert torch.equal(draw(flat, rows, torch.full((8,), 3)), first >> 13)


BATCH = st.lists(st.tuples(LOGITS, SAMPLINGS, st.integers(0, 2**20)), min_size=2, max_size=9)


@given(batch=BATCH, data=st.data())
@settings(max_examples=50, deadline=None)
def test_no_companion_changes_a_draw(batch: list[tuple[list[float], Sampling, int]], data: st.DataObject) -> None:
    def drawn(items: list[tuple[list[float], Sampling, int]]) -> list[int]:
        logits = torch.tensor([i[0] for i in items])
        found: list[int] = draw(logits, SamplingRows.of([i[1] for i in items]), steps(*(i[2] for i in items))).tolist()
        return found

    together = drawn(batch)
    assert together == [t for item in batch for t in drawn([item])]
    order = data.draw(st.permutations(range(len(batch))))
    assert drawn([batch[i] for i in order]) == [together[i] for i in order]
    cut = data.draw(st.integers(1, len(batch) - 1))
    assert drawn(batch[:cut]) + drawn(batch[cut:]) == together
    padding = ([NAN] * 9, Sampling(temperature=0.7, top_k=2, top_p=0.5), 0)
    assert drawn([*batch, *[padding] * 23]) == [*together, *[-1] * 23]


def test_no_companion_changes_a_draw_of_a_real_vocabulary() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(16, 20_480, generator=generator) * 2
    requests = [Sampling(temperature=0.5 + i / 8, top_k=i * 40, top_p=1 - i / 40, seed=i) for i in range(16)]
    together = draw(logits, SamplingRows.of(requests), torch.arange(16))
    alone = [int(draw(logits[i : i + 1], SamplingRows.of([r]), steps(i))) for i, r in enumerate(requests)]
    assert together.tolist() == alone and len(set(alone)) > 8


def softmax(values: list[float], sampling: Sampling) -> list[float]:
    """Exact probabilities by the textbook, in floating point: another route than integer weights."""
    powers = [math.exp(v / sampling.temperature) for v in values]
    ranked = sorted(range(len(values)), key=lambda i: -values[i])[: sampling.top_k or None]
    total, kept, mass = sum(powers[i] for i in ranked), [], 0.0
    for i in ranked:
        if mass < sampling.top_p * total:
            kept.append(i)
            mass += powers[i]
    return [powers[i] / mass if i in kept else 0.0 for i in range(len(values))]


VALUES = [0.3, -1.2, 2.0, 1.1, 0.9, -0.4, 1.7, -3.0, 0.0, 0.5, -0.8, 1.3]


def sample(sampling: Sampling, draws: int = DRAWS, values: list[float] = VALUES) -> list[int]:
    """Counts of many draws of one request, step after step."""
    logits = torch.tensor([values]).expand(draws, -1).contiguous()
    rows = SamplingRows.of([sampling]).repeated(draws)
    return torch.bincount(draw(logits, rows, torch.arange(draws)), minlength=len(values)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.4, seed=2),
        Sampling(temperature=3.0, seed=3),
        Sampling(temperature=1.0, top_k=4, seed=4),
        Sampling(temperature=1.0, top_p=0.7, seed=5),
        Sampling(temperature=1.5, top_k=9, top_p=0.8, seed=2**63 - 1),
    ],
    ids=str,
)
def test_draws_follow_the_exact_probabilities(sampling: Sampling) -> None:
    exact = softmax(VALUES, sampling)
    assert chances(torch.tensor([VALUES]), **vars(sampling)) == pytest.approx(exact, abs=1e-7)  # logits are float32
    assert fits(sample(sampling), exact, ALPHA).same


@pytest.mark.parametrize(
    "wrong",
    [
        Sampling(temperature=1.1, seed=6),
        Sampling(temperature=1.0, top_k=10, seed=6),
        Sampling(temperature=1.0, top_p=0.98, seed=6),
    ],
    ids=str,
)
def test_a_sampler_that_is_a_little_wrong_is_rejected(wrong: Sampling) -> None:
    right = Sampling(temperature=1.0, seed=7)
    assert not fits(sample(wrong), softmax(VALUES, right), ALPHA).same
    assert not same_distribution(sample(wrong), sample(right), ALPHA).same
    assert same_distribution(sample(Sampling(temperature=1.0, seed=8)), sample(right), ALPHA).same


HALVES = logs(0.5, 0.25, 0.125, 0.125)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.01, [1, 0, 0, 0]),  # the likeliest always stays
        (0.5, [1, 0, 0, 0]),
        (0.5000001, [2 / 3, 1 / 3, 0, 0]),
        (0.75, [2 / 3, 1 / 3, 0, 0]),
        (0.8, [4 / 7, 2 / 7, 1 / 7, 0]),  # of two equal ones the lower id
        (0.9, [0.5, 0.25, 0.125, 0.125]),
        (1.0, [0.5, 0.25, 0.125, 0.125]),
    ],
)
def test_top_p_by_hand(top_p: float, expected: list[float]) -> None:
    assert chances(HALVES, temperature=1.0, top_p=top_p) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.751, 4), (1.0, 4)])
def test_top_p_that_is_reached_exactly_needs_no_more(top_p: float, kept: int) -> None:
    flat = torch.zeros(1, 4)  # its weights are exact, those of logarithms are not
    assert chances(flat, temperature=1.0, top_p=top_p) == [round(1 / kept, 9)] * kept + [0.0] * (4 - kept)


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [(1, [1, 0, 0, 0]), (2, [2 / 3, 1 / 3, 0, 0]), (3, [4 / 7, 2 / 7, 1 / 7, 0]), (4, None), (9, None), (0, None)],
)
def test_top_k_by_hand(top_k: int, expected: list[float] | None) -> None:
    expected = expected or [0.5, 0.25, 0.125, 0.125]
    assert chances(HALVES, temperature=1.0, top_k=top_k) == pytest.approx(expected, abs=1e-8)


def test_top_p_counts_what_top_k_left() -> None:
    # of 1/2 1/4 1/8 1/8 top-k 2 leaves 2/3 1/3, of which 0.6 needs one; of all four it would need two
    assert chances(HALVES, temperature=1.0, top_k=2, top_p=0.6) == [1, 0, 0, 0]
    assert chances(HALVES, temperature=1.0, top_p=0.6)[1] > 0


def test_temperature_comes_before_top_p() -> None:
    # at temperature 1/2 the probabilities are squared: 16 4 1 1 of 22, and 0.7 needs one
    assert chances(HALVES, temperature=0.5, top_p=0.7) == [1, 0, 0, 0]


def test_the_mask_comes_first() -> None:
    mask = torch.tensor([[False, True, True, True]])
    rows = SamplingRows.of([Sampling(temperature=1.0, top_k=2)])
    assert probabilities(HALVES, rows, mask)[0].tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert one(HALVES, Sampling(), mask=mask) == 1


@pytest.mark.parametrize("greedy_only", [True, False], ids=["greedy batch", "mixed batch"])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([1.0, 3.0, 3.0, 2.0], 1),
        ([-0.0, 0.0, -1.0, -1.0], 0),
        ([0.0, -0.0, -1.0, -1.0], 0),
        ([NAN, 1.0, NAN, 0.0], 1),
        ([5.0, INF, NAN, INF], 1),
        ([-INF, -INF, -5.0, NAN], 2),
        ([NAN, NAN, NAN, NAN], -1),
        ([-INF, -INF, -INF, -INF], -1),
        ([-3e38, 3e38, -INF, 0.0], 1),
    ],
)
def test_greedy_by_hand(row: list[float], token: int, greedy_only: bool) -> None:
    rows = SamplingRows.of([Sampling(top_k=3, top_p=0.1), Sampling(temperature=0.0 if greedy_only else 1.0, top_k=1)])
    assert draw(torch.tensor([row, row]), rows, steps(0, 9)).tolist() == [token, token]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([NAN, 1.0, 1.0, -INF], [0, 0.5, 0.5, 0]),
        ([5.0, INF, NAN, INF], [0, 0.5, 0, 0.5]),
        ([NAN, -INF, NAN, -INF], [0, 0, 0, 0]),
    ],
)
def test_what_is_not_finite_has_one_meaning(row: list[float], expected: list[float]) -> None:
    assert chances(torch.tensor([row]), temperature=1.0, top_p=0.99) == expected
    tokens = {one(torch.tensor([row]), Sampling(temperature=1.0, top_p=0.99, seed=s)) for s in range(20)}
    assert tokens == ({i for i, p in enumerate(expected) if p} or {-1})


def test_equal_logits_at_the_boundary_of_top_k_keep_the_lower_ids() -> None:
    assert chances(torch.tensor([[-0.0, 0.0, 0.0, -0.0]]), temperature=1.0, top_k=2) == [0.5, 0.5, 0, 0]


def test_repeated_rows_are_the_settings_of_successive_positions() -> None:
    rows = SamplingRows.of([Sampling(temperature=1.0, seed=1), Sampling(temperature=2.0, top_k=3, seed=2)])
    logits = torch.tensor([VALUES] * 6)
    twice = draw(logits, rows.repeated(3), steps(0, 1, 2, 0, 1, 2)).tolist()
    assert twice == [int(draw(logits[:2], rows, steps(s, s))[r]) for r in (0, 1) for s in (0, 1, 2)]


def test_a_draw_never_waits_for_the_device() -> None:
    # meta tensors have no values: an operation that needed one on the host, or a shape that depends on one, would raise
    for requests in ([Sampling()] * 4, [Sampling(temperature=1.0, top_k=2, top_p=0.5, seed=3), Sampling()] * 2):
        rows = SamplingRows.of(requests, "meta")
        mask = torch.ones(4, 512, dtype=torch.bool, device="meta")
        token = draw(torch.zeros(4, 512, device="meta"), rows, torch.zeros(4, dtype=torch.int64, device="meta"), mask)
        assert token.shape == (4,) and token.dtype == torch.int64


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": NAN},
        {"temperature": INF},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": NAN},
        {"seed": -1},
        {"seed": 2**63},
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(values: dict[str, float]) -> None:
    [name] = values
    with pytest.raises(ValueError, match=name):
        Sampling(**values)  # type: ignore[arg-type]


def test_logits_and_masks_of_another_kind_are_refused() -> None:
    rows = SamplingRows.of([Sampling()])
    for logits in (torch.zeros(1, 4, dtype=torch.bfloat16), torch.zeros(4), torch.zeros(1, 2**18 + 1)):
        with pytest.raises(ValueError, match="give float32"):
            draw(logits, rows, steps(0))
    with pytest.raises(ValueError, match="does not fit"):
        draw(torch.zeros(1, 4), rows, steps(0), torch.ones(1, 5, dtype=torch.bool))
