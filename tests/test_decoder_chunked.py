"""KDA in chunks, as prompts are read, against the recurrence token by token."""

import pytest
import torch
from support.decoders import relative

from kgen.model.decoder import chunked
from kgen.ops import kda_math

REQUESTS, HEADS, HEAD, RANK, TAPS = 2, 3, 16, 8, 3
WIDTH = HEADS * HEAD
CONSTANTS = kda_math.Constants(lower_bound=-5.0, scale=HEAD**-0.5, eps_qk=1e-6, eps=1e-5)
SAME = 1e-11  # float64, other summation orders


def normal(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def weights(dt: float) -> kda_math.Weights:
    """`dt` moves the decays: -8 keeps nearly everything, 8 decays by e^-5 a token."""
    return kda_math.Weights(
        conv_w=normal(3 * WIDTH, TAPS + 1, seed=1, scale=0.5),
        f_b=normal(WIDTH, RANK, seed=2),
        a_log=torch.zeros(HEADS, dtype=torch.float64),
        dt_bias=torch.full((WIDTH,), dt, dtype=torch.float64),
        w_onorm=1 + normal(HEAD, seed=3, scale=0.1),
    )


def rows(length: int) -> torch.Tensor:
    return normal(REQUESTS, length, 4 * WIDTH + RANK + HEADS, seed=length)


START = normal(REQUESTS, 3 * WIDTH, TAPS, seed=4), normal(REQUESTS, HEADS, HEAD, HEAD, seed=5)


@pytest.mark.parametrize("dt", [-8.0, 0.0, 8.0])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_chunks_give_what_the_recurrence_gives(length: int, dt: float) -> None:
    p, own = rows(length), weights(dt)
    got = chunked.sequence(p, *START, own, CONSTANTS, False)
    want = kda_math.sequence(p, *START, own, CONSTANTS, False)
    assert all(g.shape == w.shape and relative(g, w) < SAME for g, w in zip(got, want, strict=True))


def test_a_sequence_in_two_pieces_is_one_sequence() -> None:
    p, own = rows(150), weights(0.0)
    whole = chunked.sequence(p, *START, own, CONSTANTS, False)
    first, *between = chunked.sequence(p[:, :70], *START, own, CONSTANTS, False)
    second, *after = chunked.sequence(p[:, 70:], *between, own, CONSTANTS, False)
    assert relative(torch.cat([first, second], 1), whole[0]) < SAME
    assert all(relative(a, w) < SAME for a, w in zip(after, whole[1:], strict=True))


def test_float32_is_as_near_to_float64_as_the_recurrence_in_float32() -> None:
    p, own = rows(200), weights(0.0)
    exact = kda_math.sequence(p, *START, own, CONSTANTS, False)[0]
    narrow = [x.float() for x in (p, *START)]
    errors = [
        relative(form(*narrow, own.to(torch.float32), CONSTANTS, False)[0], exact)
        for form in (chunked.sequence, kda_math.sequence)
    ]
    assert errors[0] < max(4 * errors[1], 2e-6)


def test_rounded_rows_are_bf16_values() -> None:
    y, _, _ = chunked.sequence(rows(5), *START, weights(0.0), CONSTANTS, True)
    assert torch.equal(y, y.bfloat16().double())
