"""attn_res: closed forms and plain loops, snapshots and depths over many calls, what its rules refuse, its cost."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kgen.contract.selftest import complaints
from kgen.gates.judge import Chain, expected, judge_outputs
from kgen.gates.rows import rows_of, with_tokens
from kgen.ops.attn_res import AttnRes
from kgen.records import Problem

OP = AttnRes()
HIDDEN = OP.dims["nano"]["hidden"]
VARIANTS = OP.axes["variant"]


def problem(tokens: int = 2, **axes: str) -> Problem:
    return OP.problem("nano", tokens, "sm_90a", axes)


def refused(point: Problem, values: dict[str, Any], got: dict[str, torch.Tensor]) -> list[str]:
    rows = judge_outputs(OP, point, values, got, expected(OP, point, values), "test", 0)
    return [row.complaint for row in rows if row.complaint]


def bf16(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float64).float().to(torch.bfloat16))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", [f.name for f in (*OP.families, *OP.scenarios)])
def test_the_stock_op_passes_every_family_with_the_copy(family: str, variant: str) -> None:
    point = problem(variant=variant, aux="yes")
    values = OP.inputs(point, family, 11, "cpu")
    assert refused(point, values, OP.stock(point)(values)) == []


def test_the_references_are_fit_to_judge() -> None:
    assert complaints(OP) == ()


def constant_rows(block: float, prefix: float, **scalars: float) -> dict[str, Any]:
    """One token whose rows are constant, so that every score and norm has a closed form."""
    blocks = torch.full((1, 2, HIDDEN), block)
    ones = torch.ones(HIDDEN)
    values = {"prefix": prefix * ones[None], "blocks": blocks, "w_norm": ones, "w_query": ones / HIDDEN, "w_out": ones}
    halves = {name: v.to(torch.bfloat16) for name, v in values.items()}
    return {**halves, "nb": 1, "write_idx": -1, "eps": 0.0, "eps_out": 1.0, **scalars}


@pytest.mark.parametrize(("block", "prefix"), [(2.0, -1.0), (-0.5, 4.0), (3.0, 3.0)])
def test_two_constant_sources_have_a_closed_form(block: float, prefix: float) -> None:
    # a constant row c scores sum(c / HIDDEN) / |c| = sign(c) when eps is 0
    got = OP.reference(problem(1, variant="prefix_only"), constant_rows(block, prefix), rounded=False)["out"]
    a, b = math.exp(math.copysign(1, block)), math.exp(math.copysign(1, prefix))
    mix = (a * block + b * prefix) / (a + b)
    assert got[0].tolist() == pytest.approx([mix / math.sqrt(mix * mix + 1)] * HIDDEN, rel=1e-12)


def test_only_the_final_variant_rounds_the_mix() -> None:
    values = {**constant_rows(2.0, -1.0), "delta": torch.zeros(1, HIDDEN, dtype=torch.bfloat16)}
    a, b = math.e, 1 / math.e
    mix = (2 * a - b) / (a + b)
    for variant, taken in (("delta", mix), ("final", bf16(mix))):
        got = OP.reference(problem(1, variant=variant), {**values, "eps_out": 1e-3}, rounded=True)["out"]
        assert float(got[0, 0]) == bf16(taken / math.sqrt(taken * taken + 1e-3))
    assert bf16(mix) != mix


def plain_step(state: dict[str, Any], delta: list[float], nb: int, write: int, w: dict[str, Any]) -> list[float]:
    """One call for one token in Python floats, term by term; changes `state`."""
    p = [bf16(a + b) for a, b in zip(state["prefix"], delta, strict=True)]
    state["prefix"] = p
    sources = [list(row) for row in state["blocks"][:nb]] + [p]
    if write >= 0:
        state["blocks"][write] = list(p)
    scores = [
        sum(v * a * b for v, a, b in zip(s, w["w_norm"], w["w_query"], strict=True))
        / math.sqrt(sum(v * v for v in s) / len(s) + w["eps"])
        for s in sources
    ]
    weights = [math.exp(s - max(scores)) for s in scores]
    mix = [sum(a * s[i] for a, s in zip(weights, sources, strict=True)) / sum(weights) for i in range(len(p))]
    scale = 1 / math.sqrt(sum(v * v for v in mix) / len(mix) + w["eps_out"])
    return [v * scale * g for v, g in zip(mix, w["w_out"], strict=True)]


def test_the_order_of_the_model_agrees_with_plain_loops() -> None:
    """Twelve calls: every second one snapshots what the next one mixes."""
    point = problem(1)
    first = OP.inputs(point, "normal", 5, "cpu")
    chain = Chain(OP, point, {**first, "nb": 0, "write_idx": 0})
    state = {"prefix": first["prefix"][0].tolist(), "blocks": first["blocks"][0].tolist()}
    weights = {n: first[n].tolist() for n in ("w_norm", "w_query", "w_out")} | {n: first[n] for n in ("eps", "eps_out")}
    for step in range(12):
        nb = step // 2 % 3
        write = -1 if step % 2 or nb == 2 else nb
        fresh = {**OP.inputs(point, "normal", 5 + step, "cpu"), "nb": nb, "write_idx": write}
        got = chain.step(fresh if step else None).rounded
        want = plain_step(state, fresh["delta"][0].tolist(), nb, write, weights)
        assert got["prefix"][0].tolist() == state["prefix"] and got["blocks"][0].tolist() == state["blocks"]
        assert got["out"][0].tolist() == pytest.approx(want, rel=2**-8, abs=1e-30)


def eight_slots(family: str) -> tuple[int, int]:
    wide = AttnRes()
    wide.dims = {"nano": {"hidden": 16, "slots": 8}}  # type: ignore[misc]
    values = wide.inputs(problem(1), family, 3, "cpu")
    return values["nb"], values["write_idx"]


def test_the_families_reach_every_depth_of_eight_slots_and_both_ends_of_the_writes() -> None:
    found = [eight_slots(f.name) for f in OP.families]
    assert {nb for nb, _ in found} == set(range(9))
    assert {write for _, write in found} == {-1, 0, 4, 7}
    assert all(write in (-1, nb) for nb, write in found), "what is written is not mixed"


@pytest.mark.parametrize("scenario", [f.name for f in OP.scenarios])
def test_a_scenario_has_the_depth_of_its_name(scenario: str) -> None:
    nb = int(scenario.removeprefix("nb").removesuffix("_write"))
    assert eight_slots(scenario) == (nb, 4 if scenario.endswith("_write") else -1)


def test_growing_reaches_thirty_in_sixty_four_steps() -> None:
    point = problem(2)
    chain = Chain(OP, point, OP.inputs(point, "growing", 9, "cpu"))
    for step in range(64):
        got = chain.step(OP.inputs(point, "growing", 9 + step, "cpu") if step else None).rounded["prefix"]
    assert float(got.square().mean().sqrt()) == pytest.approx(30.0, rel=0.1)
    spread = OP.inputs(point, "growing", 9, "cpu")["blocks"].float().square().mean((0, 2)).sqrt()
    assert spread.tolist() == pytest.approx([1.0, 30.0], rel=0.15)


def change(values: dict[str, torch.Tensor], name: str, made: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    return {**values, name: made(values[name].clone())}


def other_bit(x: torch.Tensor) -> torch.Tensor:
    x.view(torch.int16)[..., 0] ^= 1
    return x


def no_minus_zero(x: torch.Tensor) -> torch.Tensor:
    return x + 0.0


FAULTS = [
    ("normal", "prefix", other_bit, "prefix: must equal"),
    ("normal", "aux", other_bit, "aux: must equal"),
    ("normal", "blocks", other_bit, "not written to"),
    ("write", "blocks", other_bit, "blocks: must equal"),
    ("write_first", "blocks", other_bit, "blocks: must equal"),
    ("signed_zero", "prefix", no_minus_zero, "prefix: must equal"),
    ("signed_zero", "blocks", no_minus_zero, "not written to"),
    ("normal", "out", lambda x: x * 1.01, "out: relL2"),
]


@pytest.mark.parametrize(("family", "name", "fault", "words"), FAULTS)
def test_a_planted_fault_is_refused(family: str, name: str, fault: Callable, words: str) -> None:
    point = problem(aux="yes")
    values = OP.inputs(point, family, 4, "cpu")
    assert any(words in line for line in refused(point, values, change(OP.stock(point)(values), name, fault)))


def test_a_kernel_that_multiplies_unused_slots_by_zero_is_refused() -> None:
    point = problem()
    values = OP.inputs(point, "unused_inf", 4, "cpu")
    assert bool(values["blocks"][:, values["nb"] :].isinf().all()) and values["nb"] == 1
    mask = torch.tensor([1.0, 0.0]).to(torch.bfloat16)[:, None]
    spoilt = OP.stock(point)({**values, "blocks": values["blocks"] * mask, "nb": 2})
    got = {**OP.stock(point)(values), "out": spoilt["out"]}
    assert any(line.startswith("out:") for line in refused(point, values, got))


@pytest.mark.parametrize("variant", VARIANTS)
def test_fewer_rows_give_the_same_rows(variant: str) -> None:
    point = problem(8, variant=variant, aux="yes")
    values = OP.inputs(point, "write", 4, "cpu")
    whole, part = OP.stock(point)(values), OP.stock(point)(rows_of(OP, point, values, 3))
    assert all(torch.equal(whole[name][:3], part[name]) for name in whole)
    assert set(whole) == {t.name for t in OP.outputs(with_tokens(point, 3))}


def test_a_timed_call_copies_no_blocks_and_another_does() -> None:
    point = problem()
    values = OP.inputs(point, "normal", 4, "cpu")
    timed = OP.stock(point, lambda f, dynamic: f)(values)["blocks"]
    assert timed.data_ptr() == values["blocks"].data_ptr() != OP.stock(point)(values)["blocks"].data_ptr()


@pytest.mark.parametrize(("tokens", "megabytes"), [(1, 0.158), (8, 0.961), (64, 7.383)])
def test_costs_at_four_blocks_are_the_published_ones(tokens: int, megabytes: float) -> None:
    for dims in ("k3-tp8", "k3-tp16", "vllm-tp1"):
        cost = OP.cost(OP.problem(dims, tokens, "sm_90a"))
        assert cost.bytes / 1e6 == pytest.approx(megabytes, abs=6e-4)  # B 2 7168 (nb + 4) + 43 KB
        assert cost.flops == tokens * 7168 * (4 * 5 + 10)


@pytest.mark.parametrize(
    ("axes", "nb", "write", "rows"),
    [
        ({}, 0, -1, 4),  # prefix, delta; prefix, out
        ({}, 8, -1, 12),
        ({}, 4, 4, 9),
        ({"aux": "yes"}, 4, -1, 9),
        ({"variant": "prefix_only"}, 4, -1, 6),  # neither delta nor a store of prefix
        ({"variant": "final"}, 8, -1, 12),
    ],
)
def test_the_cost_follows_depth_and_snapshot(axes: dict[str, str], nb: int, write: int, rows: int) -> None:
    point = OP.problem("k3-tp8", 64, "sm_90a", axes)
    assert OP.cost_of(point, {"nb": nb, "write_idx": write}).bytes == 2 * 7168 * (64 * rows + 3)
