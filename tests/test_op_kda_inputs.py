"""Inputs of kda_core: deterministic and valid, and every family holds the trap that it is named after."""

import math

import pytest
import torch
from support.kda import ALL_Q, OP, drawn, problem

from kgen.contract import Family, Role, Values
from kgen.gates.runner.buffers import same_bits
from kgen.ops import kda_math
from kgen.ops.kda_inputs import RANK, constants_of, weights_of

CASES = [pytest.param(q, f, id=f"q{q}-{f.name}") for q in ALL_Q for f in OP.families]


@pytest.mark.parametrize(("q", "family"), CASES)
def test_inputs_are_deterministic_complete_and_valid(q: int, family: Family) -> None:
    point = problem(8, q)
    name = family.name
    first, again, other = (OP.inputs(point, name, seed, "cpu") for seed in (1, 1, 2))
    tensors = [t for t in OP.present(point) if t.role is not Role.OUT]
    assert set(first) == {t.name for t in tensors} | {s.name for s in OP.scalars}
    for spec in tensors:
        assert same_bits(first[spec.name], again[spec.name])
        assert first[spec.name].shape == spec.sizes(OP.sizes(point))
        assert first[spec.name].is_contiguous()
    assert not torch.equal(first["p"], other["p"])
    steady = family.steps > 1
    if name != "null_slots":
        assert torch.equal(first["slots"], other["slots"]) is steady
        slots = first["slots"].flatten().tolist()
        assert len(set(slots)) == 8 and min(slots) > 0 and max(slots) < first["s"].shape[0]
        assert slots != sorted(slots)
    if q > 1 and name != "null_slots":
        assert set(first["accepted"].tolist()) <= set(range(1, q + 1))


def decays(values: Values) -> torch.Tensor:
    weights = weights_of(values, torch.float64)
    return kda_math.decay(kda_math.gate_rows(values["p"].double(), weights, True), weights, values["lower_bound"])


def tokens_of(values: Values) -> kda_math.Tokens:
    weights, p = weights_of(values, torch.float64), values["p"].double()[:, None]
    taps = values["conv"][values["slots"].long()].double()
    return kda_math.prepare(p, kda_math.gate_rows(p, weights, True), taps, weights, constants_of(values))[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_decay_families_reach_their_ends_and_normal_covers_the_range(seed: int) -> None:
    long, fast, normal = (decays(drawn(8, 1, f, seed)[1]) for f in ("long_memory", "fast_decay", "normal"))
    assert float(long.min()) > 0.8 and float((long > 0.98).double().mean()) > 0.85
    assert float(fast.max()) < 1.25 * math.exp(-5)
    assert float(normal.min()) < 0.01 and float(normal.max()) > 0.99


def test_zero_rows_have_keys_of_length_zero() -> None:
    k = tokens_of(drawn(8, 1, "zero_rows")[1]).k[:, 0]
    assert not k[::2].any()
    assert k[1::2].norm(dim=-1).flatten().tolist() == pytest.approx([1.0] * 8, rel=1e-3)


def test_tiny_keys_are_far_from_unit_length_and_large_ones_are_not() -> None:
    tiny, large = (tokens_of(drawn(8, 1, f)[1]).k.norm(dim=-1) for f in ("tiny", "large"))
    assert float(tiny.min()) > 0 and float(tiny.max()) < 1e-6
    assert float((large - 1).abs().max()) < 1e-6


def test_saturated_strengths_are_one_or_nothing_in_both_ways() -> None:
    strength = tokens_of(drawn(8, 1, "beta_saturated")[1]).strength.float()
    assert bool(((strength == 1) | (strength < 1e-17)).all())
    assert 0 < int((strength == 1).sum()) < strength.numel()


def test_outliers_negative_zeros_and_large_gates_are_there() -> None:
    p = drawn(8, 1, "outlier")[1]["p"].float()
    assert float(p.abs().amax(0).median()) < 5 < 30 < float(p.abs().max())
    negative = torch.signbit(p := drawn(8, 1, "signed_zero")[1]["p"]) & (p == 0)
    assert 0.3 < float(negative.double().mean()) < 0.7
    assert float(tokens_of(drawn(8, 1, "large")[1]).gate.max()) == 1.0


@pytest.mark.parametrize("q", [1, 4])
def test_a_warm_state_is_what_earlier_tokens_left(q: int) -> None:
    """Values under a key that was written long ago are gone; the state is no random matrix: its rows are few sums."""
    _, values = drawn(4, q, "warm")
    state = values["s"].double()
    energy = torch.linalg.svdvals(state).square()
    assert float((energy[..., :16].sum(-1) / energy.sum(-1)).min()) > 0.9
    assert float(state.abs().amax((-1, -2)).min()) > 0.05
    random = torch.linalg.svdvals(drawn(4, q)[1]["s"].double()).square()
    assert float((random[..., :16].sum(-1) / random.sum(-1)).max()) < 0.5


@pytest.mark.parametrize("q", ALL_Q)
def test_null_slots_hold_both_kinds_of_padding_among_live_requests(q: int) -> None:
    point = problem(64 if q == 8 else 32, q)
    first = OP.inputs(point, "null_slots", 1, "cpu")["slots"].reshape(-1, q)[:, 0]
    assert {0, -1} <= set(first.tolist())
    assert int((first > 0).sum()) == first.numel() // 2


@pytest.mark.parametrize("family", ["normal", "outlier", "large", "long_memory"])
def test_gate_sums_are_exact_in_float32_in_any_order(family: str) -> None:
    _, values = drawn(8, family=family)
    d = values["dt_bias"].numel()
    f_a, f_b = values["p"][:, 4 * d : 4 * d + RANK], values["f_b"]
    want = f_a.double() @ f_b.double().mT
    total = torch.zeros_like(want, dtype=torch.float32)
    for c in torch.randperm(RANK, generator=torch.Generator().manual_seed(2)).tolist():
        total += f_a[:, c, None].float() * f_b[:, c].float()
    assert torch.equal(total.double(), want)
