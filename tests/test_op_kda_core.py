"""kda_core: stock and references on every family, rules against wrong answers, padding, points, costs, hash."""

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.kda import ALL_Q, OP, drawn, problem

from kgen.contract import Family, Values, relative_l2, selftest
from kgen.gates import judge
from kgen.gates.rows import rows_of, with_tokens
from kgen.gates.runner.buffers import guarded, same_bits
from kgen.ops.kda_core import KdaCore
from kgen.ops.kda_inputs import HEAD
from kgen.ops.kda_rules import WorstSlot
from kgen.records import Problem

Tensors = dict[str, torch.Tensor]
CASES = [pytest.param(q, f, id=f"q{q}-{f.name}") for q in ALL_Q for f in OP.families]


def complaints(point: Problem, values: Values, got: Tensors, steps: int = 1) -> list[str]:
    rows = judge.judge_outputs(OP, point, values, got, judge.expected(OP, point, values), "", 0, steps)
    return [row.complaint for row in rows if row.complaint]


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
        assert row.output != "s" or row.errors.stock_rounded < 2e-6  # no rounding of rg came out another way


def test_float32_drifts_little_over_256_steps_and_bf16_states_are_refused() -> None:
    point, values = drawn(1, family="drift")
    chain = judge.Chain(OP, point, values)
    coarse: Values = dict(values)
    for step in range(256):
        fresh = OP.inputs(point, "drift", 3 + step, "cpu")
        answer = chain.step(fresh if step else None)
        got = chain.stock_run({**coarse, "p": fresh["p"]})
        coarse |= {"conv": got["conv"], "s": got["s"].to(torch.bfloat16).float()}
    assert relative_l2(answer.stock["s"], answer.rounded["s"]) < 1e-6
    rule, names = OP.rule(next(t for t in OP.tensors if t.name == "s")), (answer.stock, answer.rounded, answer.true)
    assert rule.judge(answer.stock["s"], *(a["s"] for a in names), 256).complaint == ""
    assert "relL2" in rule.judge(coarse["s"], *(a["s"] for a in names), 256).complaint


@pytest.mark.parametrize("dims", ["k3-tp8", "k3-tp16"])
def test_stock_passes_at_the_models_own_widths(dims: str) -> None:
    point = problem(1, 1, dims)
    values = OP.inputs(point, "normal", 5, "cpu")
    assert complaints(point, values, OP.stock(point)(values)) == []


def test_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


def _unrounded_gate(point: Problem, values: Values, got: Tensors) -> Tensors:
    true = OP.reference(point, values, rounded=False)
    return {"y": true["y"].to(torch.bfloat16), "conv": got["conv"], "s": true["s"].float()}


def _on(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Tensors]:
    return lambda point, values, got: {**got, name: change(got[name])}


@functools.cache
def judged_call(q: int) -> tuple[Problem, Values, judge.Expected]:
    point, values = drawn(8, q, "signed_zero")
    return point, values, judge.expected(OP, point, values)


WRONG: dict[str, tuple[Callable[..., Tensors], str]] = {
    "state in bf16": (_on("s", lambda s: s.to(torch.bfloat16).float()), "s: "),
    "state transposed": (_on("s", lambda s: s.mT.contiguous()), "s: "),
    "gate not rounded": (_unrounded_gate, "s: "),
    "y of another head": (_on("y", lambda y: y.roll(HEAD, 1)), "y: "),
    "state not written": (lambda p, v, got: {**got, "s": v["s"]}, "s: "),
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
    got["s"][values["slots"].long()] *= 1 + 1e-4
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


@pytest.mark.parametrize("q", ALL_Q)
def test_padding_rows_give_zeros_and_touch_nothing_whatever_they_hold(q: int) -> None:
    point, values = drawn(2 * q, q, "null_slots")
    want = OP.stock(point)(values)
    values["p"][:q] = float("nan")
    if q > 1:
        values["accepted"][0] = -7
    values["slots"][0] = -1
    for got in (OP.stock(point)(values), OP.reference(point, values, True), OP.reference(point, values, False)):
        assert int((got["y"][:q] != 0).sum()) == 0
        assert relative_l2(got["y"][q:], want["y"][q:]) < 5e-3
        assert bool(torch.isfinite(got["s"]).all())
        own = values["slots"].reshape(-1, q)[1].long()
        others = [s for s in range(got["s"].shape[0]) if s not in own.tolist()]
        assert torch.equal(got["s"][others].float(), values["s"][others])
        assert torch.equal(got["conv"][others].bfloat16(), values["conv"][others])
        assert not torch.equal(got["s"][own].float(), values["s"][own])


@pytest.mark.parametrize("q", ALL_Q)
def test_a_call_of_padding_alone_changes_nothing(q: int) -> None:
    point, values = drawn(q, q, "null_slots")
    for got in (OP.stock(point)(values), OP.reference(point, values, True)):
        assert not got["y"].any()
        assert torch.equal(got["s"].float(), values["s"])


@pytest.mark.parametrize(("tokens", "count", "q"), [(8, 3, 1), (16, 12, 4), (64, 24, 8)])
def test_fewer_rows_than_the_bin_give_the_same_rows(tokens: int, count: int, q: int) -> None:
    point, values = drawn(tokens, q)
    part = rows_of(OP, point, values, count)
    assert part["s"].shape[0] == tokens + 3
    for run in (OP.stock(point), lambda v: OP.reference(point, v, True)):
        whole, few = run(values), run(part)
        assert few["y"].shape[0] == count
        assert relative_l2(few["y"], whole["y"][:count]) < 1e-4
        own = part["slots"].flatten().long()
        assert relative_l2(few["s"][own], whole["s"][own]) < 1e-6
        assert (
            OP.hard_rules(with_tokens(point, count), part, {k: v.to(values.get(k, v).dtype) for k, v in few.items()})
            == []
        )


FAULTS = {
    "y of padding": ("y", lambda t, v: t[0].fill_(1e-30), "padding row"),
    "y of padding is NaN": ("y", lambda t, v: t[0].fill_(float("nan")), "padding row"),
    "null slot of S": ("s", lambda t, v: t[0, 0, 0].mul_(-0.0), "s slot 0"),
    "spare slot of S": ("s", lambda t, v: t[spare(v)].add_(1), "s slot"),
    "null slot of conv": ("conv", lambda t, v: t[0].add_(1), "conv slot 0"),
}


def spare(values: Values) -> int:
    return next(s for s in range(1, values["s"].shape[0]) if s not in values["slots"].flatten().tolist())


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
    for name, dtype in (("conv", "bf16"), ("s", "f32")):
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
    plain = OP.stock(point)(values)  # first: a compiled stock op writes its states in place
    compiled = OP.stock(point, lambda fn, **kw: torch.compile(fn, backend="eager", fullgraph=True, **kw))(values)
    assert all(relative_l2(compiled[k], plain[k]) < 1e-5 for k in plain)


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


def test_the_contract_hash_covers_rules_and_layouts() -> None:
    class Looser(KdaCore):
        tensors = tuple(replace(t, rule=WorstSlot(1e-2)) if t.name == "s" else t for t in KdaCore.tensors)

    class Compact(KdaCore):
        tensors = tuple(replace(t, pitched=False) for t in KdaCore.tensors)

    assert len({op().contract_sha256() for op in (KdaCore, Looser, Compact)}) == 3
