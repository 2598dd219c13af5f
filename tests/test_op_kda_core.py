"""kda_core: its formulas against plain Python, verify steps against single steps, its rules against wrong answers."""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kgen.contract import Family, Role, Values, relative_l2, selftest
from kgen.gates import judge
from kgen.gates.rows import rows_of, with_tokens
from kgen.gates.runner.buffers import guarded, same_bits
from kgen.ops import kda_math
from kgen.ops.kda_core import KdaCore, WorstSlot
from kgen.ops.kda_inputs import HEAD, RANK, TAPS, constants_of, weights_of
from kgen.records import Problem

OP = KdaCore()
ALL_Q = [1, 4, 8]
Tensors = dict[str, torch.Tensor]


def problem(tokens: int, q: int = 1, dims: str = "nano") -> Problem:
    return OP.problem(dims, tokens, "sm_90a", {"q": str(q)})


def drawn(tokens: int, q: int = 1, family: str = "normal", seed: int = 3) -> tuple[Problem, Values]:
    point = problem(tokens, q)
    return point, OP.inputs(point, family, seed, "cpu")


def complaints(point: Problem, values: Values, got: Tensors, steps: int = 1) -> list[str]:
    rows = judge.judge_outputs(OP, point, values, got, judge.expected(OP, point, values), "", 0, steps)
    return [row.complaint for row in rows if row.complaint]


# --- formulas


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(values: Values, row: int, slot: int, head: int) -> tuple[list[float], list[list[float]]]:
    """y and S of one head of one token at q = 1, in Python floats, straight from the formulas."""
    d = values["dt_bias"].numel()
    p, taps = values["P"][row].tolist(), values["conv"][slot].tolist()
    conv_w, f_b = values["conv_w"].tolist(), values["f_b"].tolist()

    def z(part: int) -> list[float]:
        found = []
        for c in range(part * d + head * 128, part * d + head * 128 + 128):
            x = sum(w * v for w, v in zip(conv_w[c], [*taps[c], p[c]], strict=True))
            found.append(x * sigmoid(x))
        return found

    zq, zk, v = z(0), z(1), z(2)
    q = [x / math.sqrt(sum(y * y for y in zq) + values["eps_qk"]) * values["scale"] for x in zq]
    k = [x / math.sqrt(sum(y * y for y in zk) + values["eps_qk"]) for x in zk]
    decay = []
    for c in range(head * 128, head * 128 + 128):
        rg = sum(a * b for a, b in zip(p[4 * d : 4 * d + 128], f_b[c], strict=True))
        slope = math.exp(float(values["a_log"][head]))
        decay.append(math.exp(values["lower_bound"] * sigmoid(slope * (rg + float(values["dt_bias"][c])))))
    b = sigmoid(p[4 * d + 128 + head])
    state = values["S"][slot, head].tolist()
    out = []
    for i in range(128):
        state[i] = [s * x for s, x in zip(state[i], decay, strict=True)]
        u = b * (v[i] - sum(s * x for s, x in zip(state[i], k, strict=True)))
        state[i] = [s + u * x for s, x in zip(state[i], k, strict=True)]
        out.append(sum(s * x for s, x in zip(state[i], q, strict=True)))
    norm = 1 / math.sqrt(sum(o * o for o in out) / 128 + values["eps"])
    gate = [sigmoid(g) for g in p[3 * d + head * 128 : 3 * d + head * 128 + 128]]
    y = [o * norm * w * g for o, w, g in zip(out, values["w_onorm"].tolist(), gate, strict=True)]
    return y, state


@pytest.mark.parametrize("head", [0, 1])
def test_one_token_agrees_with_the_formulas_in_python_floats(head: int) -> None:
    point, values = drawn(2)
    slot = int(values["slots"][1])
    y, state = by_hand(values, 1, slot, head)
    got = OP.reference(point, values, rounded=False)
    assert got["y"][1, head * 128 : head * 128 + 128].tolist() == pytest.approx(y, rel=1e-9, abs=1e-12)
    assert got["S"][slot, head].flatten().tolist() == pytest.approx(
        [x for row in state for x in row], rel=1e-9, abs=1e-12
    )
    d = values["dt_bias"].numel()
    shifted = [
        [*old[1:], new] for old, new in zip(values["conv"][slot].tolist(), values["P"][1].tolist(), strict=False)
    ]
    assert len(shifted) == 3 * d
    assert got["conv"][slot].tolist() == shifted


def test_delta_step_on_numbers_worked_out_on_paper() -> None:
    """S D = [[.5, .5], [1.5, 1]]; S k = [.7, 1.7]; u = .5 ([1, -1] - [.7, 1.7]) = [.15, -1.35]."""
    x = [torch.tensor(v, dtype=torch.float64) for v in ([1.0, 0.0], [0.6, 0.8], [1.0, -1.0], [0.5, 0.25])]
    state = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    out, new = kda_math.delta_step(state, *x, torch.tensor(0.5, dtype=torch.float64))
    assert new.flatten().tolist() == pytest.approx([0.59, 0.62, 0.69, -0.08])
    assert out.tolist() == pytest.approx([0.59, 0.69])


@pytest.mark.parametrize(("strength", "kept"), [(1.0, 0.0), (0.0, 1.0)])
def test_full_strength_stores_v_under_k_and_none_stores_nothing(strength: float, kept: float) -> None:
    gen = torch.Generator().manual_seed(1)
    state, k, v = (torch.randn(n, generator=gen, dtype=torch.float64) for n in ((6, 6), (6,), (6,)))
    k = k / k.norm()
    _, new = kda_math.delta_step(state, k, k, v, torch.ones(6, dtype=torch.float64), torch.tensor(strength).double())
    want = kept * (state @ k) + (1 - kept) * v
    assert (new @ k).tolist() == pytest.approx(want.tolist(), abs=1e-12)


def test_convolution_weighs_the_newest_input_last() -> None:
    history, conv_w = torch.tensor([[1.0, 2.0, 3.0, 4.0, 10.0]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    got = kda_math.convolve(history, conv_w)
    sums = [0.1 + 0.4 + 0.9 + 1.6, 0.2 + 0.6 + 1.2 + 4.0]
    assert got.flatten().tolist() == pytest.approx([s * sigmoid(s) for s in sums], rel=1e-6)


@pytest.mark.parametrize(("rg", "want"), [(0.0, math.exp(-2.5)), (1e4, math.exp(-5)), (-1e4, 1.0)])
def test_decay_lies_between_the_lower_bound_and_one(rg: float, want: float) -> None:
    one = torch.ones(1, dtype=torch.float64)
    weights = kda_math.Weights(one, one[None], one.log(), one * 0, one)
    assert float(kda_math.decay(one * rg, weights, -5.0)) == pytest.approx(want, rel=1e-12)


def test_a_zero_vector_has_no_direction() -> None:
    assert kda_math.unit(torch.zeros(4), 1e-6).tolist() == [0.0] * 4


def test_a_sequence_in_two_parts_is_the_whole_sequence_and_float32_follows_float64() -> None:
    _, values = drawn(16, family="warm")
    rows, constants = values["P"], constants_of(values)

    def run(dtype: torch.dtype, *parts: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights, ys = weights_of(values, dtype), []
        taps, state = values["conv"][1].to(dtype), values["S"][1].to(dtype)
        for part in parts:
            y, taps, state = kda_math.sequence(rows[part].to(dtype), taps, state, weights, constants, rounded=True)
            ys.append(y)
        return torch.cat(ys), taps, state

    whole = run(torch.float64, slice(0, 16))
    halves = run(torch.float64, slice(0, 2), slice(2, 16))
    single = run(torch.float32, slice(0, 16))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(whole, halves, strict=True))
    assert relative_l2(single[0], whole[0]) < 1e-4
    assert relative_l2(single[2], whole[2]) < 1e-6
    assert torch.equal(whole[1], rows[-TAPS:, : whole[1].shape[0]].double().mT)


@pytest.mark.parametrize("family", ["normal", "outlier", "large", "long_memory"])
def test_gate_sums_are_exact_in_float32_in_any_order(family: str) -> None:
    _, values = drawn(8, family=family)
    d = values["dt_bias"].numel()
    f_a, f_b = values["P"][:, 4 * d : 4 * d + RANK], values["f_b"]
    want = f_a.double() @ f_b.double().mT
    total = torch.zeros_like(want, dtype=torch.float32)
    for c in torch.randperm(RANK, generator=torch.Generator().manual_seed(2)).tolist():
        total += f_a[:, c, None].float() * f_b[:, c].float()
    assert torch.equal(total.double(), want)


# --- verify steps


def single_steps(
    values: Values, row: int, taps: torch.Tensor, state: torch.Tensor, count: int, rounded: bool
) -> Tensors:
    """`count` steps of q = 1 on one request, from `row` on: y of each, and state and taps after the last."""
    point = problem(1)
    one: Values = {**{k: v for k, v in values.items() if k not in ("accepted", "slots")}}
    one |= {"slots": torch.tensor([1], dtype=torch.int32)}
    one |= {"conv": torch.stack([torch.zeros_like(taps), taps]), "S": torch.stack([torch.zeros_like(state), state])}
    ys = []
    for t in range(count):
        got = OP.reference(point, {**one, "P": values["P"][row + t : row + t + 1]}, rounded)
        one |= {"conv": got["conv"], "S": got["S"]}
        ys.append(got["y"][0])
    return {"y": torch.stack(ys), "conv": one["conv"][1], "S": one["S"][1]}


@pytest.mark.parametrize(("q", "kept"), [(q, n) for q in (4, 8) for n in range(1, q + 1)])
def test_two_verify_steps_are_single_steps_over_what_was_accepted(q: int, kept: int) -> None:
    """Draft q tokens, keep `kept`, draft q others: as if only the kept ones had ever been seen."""
    point, values = drawn(8, q)
    other = OP.inputs(point, "normal", 4, "cpu")
    b = 8 // q - 1  # the last request
    slots, start = values["slots"][b].long(), int(values["accepted"][b]) - 1
    taps, state = values["conv"][slots[0], :, start : start + TAPS], values["S"][slots[start]]
    first = OP.reference(point, values, rounded=False)
    accepted = values["accepted"].clone()
    accepted[b] = kept
    second = OP.reference(
        point, {**values, "P": other["P"], "accepted": accepted, "conv": first["conv"], "S": first["S"]}, rounded=False
    )
    before = single_steps(values, b * q, taps, state, kept, rounded=False)
    after = single_steps({**values, "P": other["P"]}, b * q, before["conv"], before["S"], q, rounded=False)
    rows = slice(b * q, b * q + q)
    assert torch.allclose(first["y"][rows][:kept], before["y"], rtol=1e-12, atol=1e-15)
    assert torch.allclose(second["y"][rows], after["y"], rtol=1e-12, atol=1e-15)
    assert torch.allclose(second["S"][slots[q - 1]], after["S"], rtol=1e-12, atol=1e-15)
    assert torch.equal(second["conv"][slots[0], :, q - 1 :], after["conv"])


@pytest.mark.parametrize("q", [4, 8])
def test_the_window_after_a_verify_step_is_two_kept_taps_and_the_new_inputs(q: int) -> None:
    point, values = drawn(q, q)
    values["accepted"] = torch.tensor([2], dtype=torch.int32)
    slot, channels = int(values["slots"][0, 0]), values["conv"].shape[1]
    got = OP.stock(point)(values)["conv"][slot]
    assert torch.equal(got[:, :2], values["conv"][slot, :, 2:4])  # taps start at 1: entries 1, 2, 3, of which two stay
    assert torch.equal(got[:, 2:], values["P"][:, :channels].mT)


@pytest.mark.parametrize("q", [4, 8])
def test_the_start_state_is_that_of_the_last_accepted_token(q: int) -> None:
    point, values = drawn(q, q)
    for n in range(1, q + 1):
        values["accepted"] = torch.tensor([n], dtype=torch.int32)
        want = OP.reference(point, values, True)["y"]
        spoiled = values["S"].clone()
        spoiled[[int(s) for i, s in enumerate(values["slots"][0]) if i != n - 1]] = float("nan")
        assert torch.equal(OP.reference(point, {**values, "S": spoiled}, True)["y"], want)


# --- stock, references and rules on every family

CASES = [pytest.param(q, f, id=f"q{q}-{f.name}") for q in ALL_Q for f in OP.families]


@pytest.mark.parametrize(("q", "family"), CASES)
def test_stock_passes_the_rules_on_every_family(q: int, family: Family) -> None:
    name, steps = family.name, family.steps
    tokens = 8 if steps == 1 else q
    steps = min(steps, 12)  # the whole drift has a test of its own
    point, values = drawn(tokens, q, name)
    chain = judge.Chain(OP, point, values)
    for step in range(steps):
        answer = chain.step(OP.inputs(point, name, 3 + step, "cpu") if step else None)
    for row in judge.judge_outputs(OP, point, chain.before, answer.stock, answer, name, 3, steps):
        assert row.complaint == ""
        assert row.output != "S" or row.errors.stock_rounded < 2e-6  # no rounding of rg came out another way


def test_float32_drifts_little_over_256_steps_and_bf16_states_are_refused() -> None:
    point, values = drawn(1, family="drift")
    chain = judge.Chain(OP, point, values)
    coarse: Values = dict(values)
    for step in range(256):
        fresh = OP.inputs(point, "drift", 3 + step, "cpu")
        answer = chain.step(fresh if step else None)
        got = chain.stock_run({**coarse, "P": fresh["P"]})
        coarse |= {"conv": got["conv"], "S": got["S"].to(torch.bfloat16).float()}
    assert relative_l2(answer.stock["S"], answer.rounded["S"]) < 1e-6
    rule, names = OP.rule(next(t for t in OP.tensors if t.name == "S")), (answer.stock, answer.rounded, answer.true)
    assert rule.judge(answer.stock["S"], *(a["S"] for a in names), 256).complaint == ""
    assert "relL2" in rule.judge(coarse["S"], *(a["S"] for a in names), 256).complaint


@pytest.mark.parametrize("dims", ["k3-tp8", "k3-tp16"])
def test_stock_passes_at_the_models_own_widths(dims: str) -> None:
    point = problem(1, 1, dims)
    values = OP.inputs(point, "normal", 5, "cpu")
    assert complaints(point, values, OP.stock(point)(values)) == []


def test_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


def _unrounded_gate(point: Problem, values: Values, got: Tensors) -> Tensors:
    true = OP.reference(point, values, rounded=False)
    return {"y": true["y"].to(torch.bfloat16), "conv": got["conv"], "S": true["S"].float()}


def _on(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Tensors]:
    return lambda point, values, got: {**got, name: change(got[name])}


@functools.cache
def judged_call(q: int) -> tuple[Problem, Values, judge.Expected]:
    point, values = drawn(8, q, "signed_zero")
    return point, values, judge.expected(OP, point, values)


WRONG: dict[str, tuple[Callable[..., Tensors], str]] = {
    "state in bf16": (_on("S", lambda s: s.to(torch.bfloat16).float()), "S: "),
    "state transposed": (_on("S", lambda s: s.mT.contiguous()), "S: "),
    "gate not rounded": (_unrounded_gate, "S: "),
    "y of another head": (_on("y", lambda y: y.roll(HEAD, 1)), "y: "),
    "state not written": (lambda p, v, got: {**got, "S": v["S"]}, "S: "),
    "window not shifted": (lambda p, v, got: {**got, "conv": v["conv"]}, "conv: "),
    "window without its zeros' signs": (_on("conv", lambda c: c + 0.0), "conv: "),
}


@pytest.mark.parametrize("q", ALL_Q)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_refused(q: int, name: str) -> None:
    point, values, answer = judged_call(q)
    change, words = WRONG[name]
    rows = judge.judge_outputs(OP, point, values, change(point, values, answer.stock), answer, "", 0)
    assert any(row.complaint.startswith(words) for row in rows)


def test_an_exponential_with_an_error_of_1e_4_passes_even_where_stock_is_exact() -> None:
    point, values = drawn(8, family="fast_decay")
    got = OP.stock(point)(values)
    got["S"][values["slots"].long()] *= 1 + 1e-4
    assert complaints(point, values, got) == []


def test_the_worst_slot_decides() -> None:
    want = torch.full((8, 4), 100.0, dtype=torch.float64)
    want[3] = 0.01
    got = want.clone()
    got[3] *= 1.001
    rule = WorstSlot(2e-4, drift=2e-3)
    assert relative_l2(got, want) < 1e-6
    assert "relL2" in rule.judge(got, want, want, want, 1).complaint
    assert rule.judge(got, want, want, want, 2).complaint == ""
    assert rule.judge(want, want, want, want, 1).complaint == ""


@pytest.mark.parametrize("value", [1e-30, float("nan"), float("inf")])
def test_an_empty_slot_must_stay_empty(value: float) -> None:
    want = torch.ones((3, 4), dtype=torch.float64)
    want[1] = 0.0
    got = want.clone()
    got[1, 2] = value
    assert WorstSlot(2e-4).judge(got, want, want, want, 1).complaint != ""


# --- padding and slots


@pytest.mark.parametrize("q", ALL_Q)
def test_padding_rows_give_zeros_and_touch_nothing_whatever_they_hold(q: int) -> None:
    point, values = drawn(2 * q, q, "null_slots")
    want = OP.stock(point)(values)
    values["P"][:q] = float("nan")
    if q > 1:
        values["accepted"][0] = -7
    values["slots"][0] = -1
    for got in (OP.stock(point)(values), OP.reference(point, values, True), OP.reference(point, values, False)):
        assert int((got["y"][:q] != 0).sum()) == 0
        assert relative_l2(got["y"][q:], want["y"][q:]) < 5e-3
        assert bool(torch.isfinite(got["S"]).all())
        own = values["slots"].reshape(-1, q)[1].long()
        others = [s for s in range(got["S"].shape[0]) if s not in own.tolist()]
        assert torch.equal(got["S"][others].float(), values["S"][others])
        assert torch.equal(got["conv"][others].bfloat16(), values["conv"][others])
        assert not torch.equal(got["S"][own].float(), values["S"][own])


@pytest.mark.parametrize("q", ALL_Q)
def test_a_call_of_padding_alone_changes_nothing(q: int) -> None:
    point, values = drawn(q, q, "null_slots")
    for got in (OP.stock(point)(values), OP.reference(point, values, True)):
        assert not got["y"].any()
        assert torch.equal(got["S"].float(), values["S"])


@pytest.mark.parametrize(("tokens", "count", "q"), [(8, 3, 1), (16, 12, 4), (64, 24, 8)])
def test_fewer_rows_than_the_bin_give_the_same_rows(tokens: int, count: int, q: int) -> None:
    point, values = drawn(tokens, q)
    part = rows_of(OP, point, values, count)
    assert part["S"].shape[0] == tokens + 3
    for run in (OP.stock(point), lambda v: OP.reference(point, v, True)):
        whole, few = run(values), run(part)
        assert few["y"].shape[0] == count
        assert relative_l2(few["y"], whole["y"][:count]) < 1e-4
        own = part["slots"].flatten().long()
        assert relative_l2(few["S"][own], whole["S"][own]) < 1e-6
        assert (
            OP.hard_rules(with_tokens(point, count), part, {k: v.to(values.get(k, v).dtype) for k, v in few.items()})
            == []
        )


FAULTS = {
    "y of padding": ("y", lambda t, v: t[0].fill_(1e-30), "padding row"),
    "y of padding is NaN": ("y", lambda t, v: t[0].fill_(float("nan")), "padding row"),
    "null slot of S": ("S", lambda t, v: t[0, 0, 0].mul_(-0.0), "S slot 0"),
    "spare slot of S": ("S", lambda t, v: t[spare(v)].add_(1), "S slot"),
    "null slot of conv": ("conv", lambda t, v: t[0].add_(1), "conv slot 0"),
}


def spare(values: Values) -> int:
    return next(s for s in range(1, values["S"].shape[0]) if s not in values["slots"].flatten().tolist())


@pytest.mark.parametrize("q", ALL_Q)
@pytest.mark.parametrize("name", FAULTS)
def test_hard_rules_catch_a_planted_fault(q: int, name: str) -> None:
    point, values = drawn(2 * q, q, "null_slots")
    got = OP.stock(point)(values)
    assert OP.hard_rules(point, values, got) == []
    tensor, plant, words = FAULTS[name]
    plant(got[tensor], values)
    assert [words in line for line in OP.hard_rules(point, values, got)] == [True]


def test_only_the_first_slot_of_a_verify_request_has_a_window() -> None:
    point, values = drawn(4, 4)
    got = OP.stock(point)(values)
    got["conv"][int(values["slots"][0, 1])] += 1
    assert any("conv slot" in line for line in OP.hard_rules(point, values, got))


@pytest.mark.parametrize("q", [1, 4])
def test_states_may_have_gaps_between_their_slots(q: int) -> None:
    point, values = drawn(4, q)
    spread: Values = dict(values)
    for name, dtype in (("conv", "bf16"), ("S", "f32")):
        spread[name] = guarded(values[name].shape, dtype, "cpu", pitched=True).tensor.copy_(values[name])
        assert not spread[name].is_contiguous()
    want, got = OP.stock(point)(values), OP.stock(point)(spread)
    assert all(same_bits(got[k], want[k]) for k in want)
    assert complaints(point, spread, got) == []


@pytest.mark.parametrize("q", ALL_Q)
def test_stock_reads_no_value_on_the_host_and_changes_no_argument(q: int) -> None:
    point, values = drawn(8, q, "null_slots")
    kept = {k: v.clone() for k, v in values.items() if isinstance(v, torch.Tensor)}
    OP.stock(point)(values)
    assert all(same_bits(values[k], v) for k, v in kept.items())
    shapes = OP.stock(point)({k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in values.items()})
    assert all(shapes[s.name].shape == s.sizes(OP.sizes(point)) for s in OP.outputs(point))


def test_a_compiled_stock_op_gives_the_same() -> None:
    point, values = drawn(4, 4)
    compiled = OP.stock(point, lambda fn, **kw: torch.compile(fn, backend="eager", fullgraph=True, **kw))(values)
    plain = OP.stock(point)(values)
    assert all(relative_l2(compiled[k], plain[k]) < 1e-5 for k in plain)


# --- inputs


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
    assert not torch.equal(first["P"], other["P"])
    steady = family.steps > 1
    if name != "null_slots":
        assert torch.equal(first["slots"], other["slots"]) is steady
        slots = first["slots"].flatten().tolist()
        assert len(set(slots)) == 8 and min(slots) > 0 and max(slots) < first["S"].shape[0]
        assert slots != sorted(slots)
    if q > 1 and name != "null_slots":
        assert set(first["accepted"].tolist()) <= set(range(1, q + 1))


def decays(values: Values) -> torch.Tensor:
    weights = weights_of(values, torch.float64)
    return kda_math.decay(kda_math.gate_rows(values["P"].double(), weights, True), weights, values["lower_bound"])


def tokens_of(values: Values) -> kda_math.Tokens:
    weights, p = weights_of(values, torch.float64), values["P"].double()[:, None]
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
    p = drawn(8, 1, "outlier")[1]["P"].float()
    assert float(p.abs().amax(0).median()) < 5 < 30 < float(p.abs().max())
    negative = torch.signbit(p := drawn(8, 1, "signed_zero")[1]["P"]) & (p == 0)
    assert 0.3 < float(negative.double().mean()) < 0.7
    assert float(tokens_of(drawn(8, 1, "large")[1]).gate.max()) == 1.0


@pytest.mark.parametrize("q", [1, 4])
def test_a_warm_state_is_what_earlier_tokens_left(q: int) -> None:
    """Values under a key that was written long ago are gone; the state is no random matrix: its rows are few sums."""
    _, values = drawn(4, q, "warm")
    state = values["S"].double()
    energy = torch.linalg.svdvals(state).square()
    assert float((energy[..., :16].sum(-1) / energy.sum(-1)).min()) > 0.9
    assert float(state.abs().amax((-1, -2)).min()) > 0.05
    random = torch.linalg.svdvals(drawn(4, q)[1]["S"].double()).square()
    assert float((random[..., :16].sum(-1) / random.sum(-1)).max()) < 0.5


@pytest.mark.parametrize("q", ALL_Q)
def test_null_slots_hold_both_kinds_of_padding_among_live_requests(q: int) -> None:
    point = problem(64 if q == 8 else 32, q)
    first = OP.inputs(point, "null_slots", 1, "cpu")["slots"].reshape(-1, q)[:, 0]
    assert {0, -1} <= set(first.tolist())
    assert int((first > 0).sum()) == first.numel() // 2


# --- points, costs, hash


@pytest.mark.parametrize(("tokens", "q"), [(1, 4), (6, 4), (4, 8), (7, 8)])
def test_tokens_that_are_no_whole_requests_are_refused_in_one_line(tokens: int, q: int) -> None:
    with pytest.raises(ValueError, match=f"{tokens} tokens are not whole requests of {q}") as caught:
        problem(tokens, q)
    assert "\n" not in str(caught.value)


def test_points_are_the_axis_values_that_fit() -> None:
    found = {tokens: [p.axes["q"] for p in OP.points("k3-tp8", tokens, "sm_90a")] for tokens in (3, 4, 8)}
    assert found == {3: ["1"], 4: ["1", "4"], 8: ["1", "4", "8"]}


def test_widths_are_the_published_ones() -> None:
    rows = {name: (d["columns"], d["width"], d["heads"]) for name, d in OP.dims.items()}
    assert rows == {"k3-tp8": (6288, 1536, 12), "k3-tp16": (3216, 768, 6), "nano": (1168, 256, 2)}
    assert OP.own_name("vllm-tp1") == "k3-tp8"


@pytest.mark.parametrize(
    ("dims", "tokens", "megabytes", "gigaflops"),
    [
        ("k3-tp8", 1, 2.11, 0.002),
        ("k3-tp8", 8, 13.62, 0.016),
        ("k3-tp8", 64, 105.67, 0.128),
        ("k3-tp16", 1, 1.06, 0.001),
        ("k3-tp16", 8, 6.81, 0.008),
        ("k3-tp16", 64, 52.84, 0.064),
    ],
)
def test_costs_are_the_published_ones(dims: str, tokens: int, megabytes: float, gigaflops: float) -> None:
    cost = OP.cost(problem(tokens, 1, dims))
    assert cost.bytes / 1e6 == pytest.approx(megabytes, abs=0.006)
    assert cost.flops / 1e9 == pytest.approx(gigaflops, rel=0.02, abs=0.0005)


def test_a_verify_step_reads_one_state_and_writes_one_for_each_token() -> None:
    one, four = (OP.cost(problem(4, q, "k3-tp8")) for q in (1, 4))
    state, window = 12 * 128 * 128 * 4, 3 * 1536 * 2
    assert one.bytes - four.bytes == 3 * state + 4 * window * (3 + 3) - window * (3 + 6)
    assert one.flops == four.flops


@pytest.mark.parametrize("q", ALL_Q)
def test_padding_costs_its_zeros_only(q: int) -> None:
    point, values = drawn(16, q)
    assert OP.cost_of(point, values) == OP.cost(point)
    values["slots"][:] = 0
    d = OP.dims["nano"]["width"]
    assert OP.cost_of(point, values).bytes == 2 * d * 128 + 48 * d + 16 * 2 * d
    assert OP.cost_of(point, values).flops == 0


def test_the_contract_hash_is_the_same_in_another_process() -> None:
    code = "from kgen.ops.kda_core import KdaCore; print(KdaCore().contract_sha256())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == OP.contract_sha256()


def test_the_contract_hash_covers_rules_and_layouts() -> None:
    class Looser(KdaCore):
        tensors = tuple(replace(t, rule=WorstSlot(1e-2)) if t.name == "S" else t for t in KdaCore.tensors)

    class Compact(KdaCore):
        tensors = tuple(replace(t, pitched=False) for t in KdaCore.tensors)

    assert len({op().contract_sha256() for op in (KdaCore, Looser, Compact)}) == 3
