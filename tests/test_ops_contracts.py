"""Op contracts: references against hand-computed cases, against stock, and against answers that must not pass."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
import torch

from kgen.contract import Op, relative_l2, selftest
from kgen.contract.tensors import Role
from kgen.gates import judge
from kgen.gates.runner.buffers import same_bits
from kgen.ops import REGISTRY
from kgen.ops.attn_res import AttnRes
from kgen.ops.moe_shared import MoeShared, situ
from kgen.records import Problem

OPS = list(REGISTRY.ops.values())
TOKENS = 4


CASES = [
    pytest.param(op, op.problem("nano", TOKENS, "sm_90a"), family.name, id=f"{op.name}-{family.name}")
    for op in OPS
    for family in op.families
]


@pytest.mark.parametrize(("op", "problem", "family"), CASES)
def test_stock_passes_its_own_rule_on_every_family(op: Op, problem: Problem, family: str) -> None:
    values = op.inputs(problem, family, 7, "cpu")
    answer = judge.expected(op, problem, values)
    rows = judge.judge_outputs(op, problem, values, answer.stock, answer, family, 7)
    assert [row.complaint for row in rows if row.complaint] == []
    assert {row.output for row in rows} == {t.name for t in op.outputs(problem)}


@pytest.mark.parametrize(("op", "problem", "family"), CASES)
def test_inputs_are_deterministic_and_seeded(op: Op, problem: Problem, family: str) -> None:
    first, again, other = (op.inputs(problem, family, seed, "cpu") for seed in (1, 1, 2))
    tensors = [name for name, value in first.items() if isinstance(value, torch.Tensor)]
    assert all(same_bits(first[n], again[n]) for n in tensors)
    assert any(not same_bits(first[n], other[n]) for n in tensors)
    wanted = {t.name for t in op.present(problem) if t.role is not Role.OUT} | {s.name for s in op.scalars}
    assert set(first) == wanted


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_references_are_fit_to_judge(op: Op) -> None:
    assert selftest.complaints(op) == ()


class _IgnoresDown(MoeShared):
    def reference(self, problem: Problem, values: Mapping, rounded: bool) -> dict[str, torch.Tensor]:
        same = {**values, "w_down": torch.ones_like(values["w_down"])}
        return super().reference(problem, same, rounded)


class _AcceptsZeros(MoeShared):
    def reference(self, problem: Problem, values: Mapping, rounded: bool) -> dict[str, torch.Tensor]:
        return {"y": super().reference(problem, values, rounded)["y"] * 0}


def test_a_reference_that_ignores_an_input_is_unfit() -> None:
    assert any("ignores w_down" in line for line in selftest.complaints(_IgnoresDown()))


def test_a_reference_that_accepts_zeros_is_unfit() -> None:
    assert any("zeros pass as y" in line for line in selftest.complaints(_AcceptsZeros()))


@pytest.mark.parametrize(
    ("gate", "up"), [(0.0, 1.0), (1.0, 1.0), (-1.0, 2.0), (25.0, 300.0), (-25.0, -300.0), (1e-3, -1e-3)]
)
def test_situ_agrees_with_the_formula_in_python_floats(gate: float, up: float) -> None:
    want = 4 * math.tanh(gate / 4) / (1 + math.exp(-gate)) * 25 * math.tanh(up / 25)
    got = situ(torch.tensor(gate, dtype=torch.float64), torch.tensor(up, dtype=torch.float64))
    assert float(got) == pytest.approx(want, rel=1e-12, abs=1e-300)


def test_moe_shared_picks_gate_rows_then_up_rows() -> None:
    op = REGISTRY.get("moe_shared")
    problem = op.problem("nano", 1, "sm_90a")
    size = op.sizes(problem)
    m, w_gate_up = torch.zeros(1, size["hidden"]), torch.zeros(size["width2"], size["hidden"])
    w_down = torch.zeros(size["hidden"], size["width"])
    m[0, 5] = 2.0
    w_gate_up[3, 5], w_gate_up[size["width"] + 3, 5] = 0.5, 1.5  # gate 1, up 3 of output 3
    w_down[9, 3] = 4.0
    y = op.reference(problem, {"m": m, "w_gate_up": w_gate_up, "w_down": w_down}, rounded=False)["y"]
    hidden = 4 * math.tanh(1 / 4) / (1 + math.exp(-1)) * 25 * math.tanh(3 / 25)
    assert float(y[0, 9]) == pytest.approx(4 * hidden, rel=1e-12)
    assert int((y != 0).sum()) == 1


def attn_values(nb: int, write: int) -> tuple[AttnRes, Problem, dict]:
    op = AttnRes()
    problem = op.problem("nano", 1, "sm_90a")
    values = op.inputs(problem, "normal", 3, "cpu")
    return op, problem, {**values, "nb": nb, "write_idx": write}


def test_attn_res_without_blocks_is_an_rms_norm_of_the_new_prefix() -> None:
    op, problem, values = attn_values(0, -1)
    got = op.reference(problem, values, rounded=False)
    p = (values["prefix"].double() + values["delta"].double())[0].tolist()
    scale = 1 / math.sqrt(sum(v * v for v in p) / len(p) + values["eps_out"])
    want = [v * scale * w for v, w in zip(p, values["w_out"].double().tolist(), strict=True)]
    assert got["out"][0].tolist() == pytest.approx(want, rel=1e-9)


def test_attn_res_softmax_by_hand_over_two_sources() -> None:
    op, problem, values = attn_values(1, -1)
    got = op.reference(problem, values, rounded=False)
    key = [a * b for a, b in zip(*(values[n].double().tolist() for n in ("w_norm", "w_query")), strict=True)]
    sources = [values["blocks"][0, 0].double().tolist(), got["prefix"][0].tolist()]
    scores = [
        sum(v * k for v, k in zip(s, key, strict=True)) / math.sqrt(sum(v * v for v in s) / len(s) + values["eps"])
        for s in sources
    ]
    weights = [math.exp(s - max(scores)) for s in scores]
    mix = [sum(w * s[i] for w, s in zip(weights, sources, strict=True)) / sum(weights) for i in range(len(key))]
    scale = 1 / math.sqrt(sum(v * v for v in mix) / len(mix) + values["eps_out"])
    want = [v * scale * w for v, w in zip(mix, values["w_out"].double().tolist(), strict=True)]
    assert got["out"][0].tolist() == pytest.approx(want, rel=1e-9)


def test_attn_res_writes_only_the_asked_slot_and_does_not_mix_it() -> None:
    op, problem, values = attn_values(1, 1)
    got, plain = op.reference(problem, values, True), op.reference(problem, {**values, "write_idx": -1}, True)
    assert torch.equal(got["blocks"][:, 1], got["prefix"])
    assert torch.equal(got["blocks"][:, 0], values["blocks"][:, 0].double())
    assert torch.equal(got["out"], plain["out"])


def test_a_changed_block_slot_breaks_the_hard_rule() -> None:
    op, problem, values = attn_values(1, -1)
    stock = op.stock(problem)(values)
    stock["blocks"][0, 0, 0] += 1
    assert op.hard_rules(problem, values, stock) != []


@pytest.mark.parametrize(
    ("dims", "tokens", "axes", "words"),
    [
        ("tp3", 1, None, "known: k3-tp8"),
        ("nano", 9, None, "bins: 1, 2"),
        ("nano", 1, {"variant": "best"}, "known:"),
        ("nano", 1, {"colour": "red"}, "known:"),
    ],
)
def test_unknown_points_are_refused_in_one_line(dims: str, tokens: int, axes: dict | None, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        REGISTRY.get("attn_res").problem(dims, tokens, "sm_90a", axes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (8, 8), (9, 16), (12, 16), (33, 64), (64, 64)])
def test_counts_between_bins_go_to_the_next_bin(tokens: int, size: int) -> None:
    assert REGISTRY.get("moe_shared").bin_for(tokens) == size


def test_more_tokens_than_the_largest_bin_are_refused() -> None:
    with pytest.raises(ValueError, match="largest bin 64"):
        REGISTRY.get("moe_shared").bin_for(65)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("moe_share", "did you mean moe_shared"),
        ("router", "did you mean moe_router?"),
        ("zzz", "known ops: attn_res, dense_mlp"),
    ],
)
def test_unknown_ops_are_refused_with_the_names_that_help(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"unknown op '{name}'") as caught:
        REGISTRY.get(name)
    assert said in str(caught.value)


def test_costs_match_the_published_byte_counts() -> None:
    op = REGISTRY.get("moe_shared")
    for dims, tokens, megabytes in (("k3-tp8", 1, 33.06), ("k3-tp8", 64, 34.87), ("k3-tp16", 8, 16.74)):
        moved = op.cost(op.problem(dims, tokens, "sm_90a")).bytes / 1e6
        assert moved == pytest.approx(megabytes, rel=0.005)


def test_relative_l2_of_a_not_finite_answer_is_infinite() -> None:
    want = torch.ones(4)
    assert relative_l2(torch.tensor([1.0, 1.0, float("nan"), 1.0]), want) == float("inf")
    assert relative_l2(torch.zeros(4), torch.zeros(4)) == 0.0
    assert relative_l2(torch.ones(4), torch.zeros(4)) == float("inf")


def test_contract_hashes_are_the_same_in_another_process_and_differ_by_op() -> None:
    """Where sets and dicts have another order, and nothing of this process."""
    code = "from kgen.ops import REGISTRY\nfor op in reversed(REGISTRY.ops.values()): print(op.contract_sha256())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    hashes = [op.contract_sha256() for op in OPS]
    assert said.stdout.split() == [op.contract_sha256() for op in reversed(OPS)] == hashes[::-1]
    assert len(set(hashes)) == len(hashes) >= 18


def _uncompiled(function: Callable[..., object], **_: object) -> Callable[..., object]:
    return function


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_timed_stock_call_gives_what_a_plain_one_gives(op: Op) -> None:
    """With `compile` an op may write its states in place, as an engine does; without, it leaves them alone."""
    for problem in op.points("nano", 8, "sm_90a"):
        values = op.inputs(problem, op.families[0].name, 5, "cpu")
        before = {k: v.clone() for k, v in values.items() if isinstance(v, torch.Tensor)}
        plain = op.stock(problem)(values)
        assert all(same_bits(before[n], values[n]) for n in before), "a plain call changed its arguments"
        timed = op.stock(problem, _uncompiled)(values)
        assert all(same_bits(timed[n], plain[n]) for n in plain)
