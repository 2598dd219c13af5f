"""The judge's answers: state chains, joined rows, and the table's worst rows."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from kgen.contract import Errors
from kgen.contract.rules import Judged
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.gates import judge
from kgen.gates.runner.job import stock_spec
from kgen.gates.sanitizer import errors_found, representatives
from kgen.ops import REGISTRY
from kgen.ops.moe_shared import MoeShared
from kgen.records import Problem

MOE, RES = REGISTRY.get("moe_shared"), REGISTRY.get("attn_res")
SMALL = MOE.pack.small


def test_joined_calls_get_the_answers_of_single_calls() -> None:
    problem = MOE.problem(SMALL, 3, "sm_90a")
    first = MOE.inputs(problem, "normal", 1, "cpu")
    many = [{**first, "m": MOE.inputs(problem, "large", seed, "cpu")["m"]} for seed in range(3)]
    for values, joined in zip(many, judge.expected_many(MOE, problem, many), strict=True):
        single = judge.expected(MOE, problem, values)
        assert torch.allclose(single.true["y"], joined.true["y"], rtol=1e-12)
        assert torch.equal(single.rounded["y"].bfloat16(), joined.rounded["y"].bfloat16())


def test_of_the_three_answers_one_is_rounded_as_written_and_one_not_at_all() -> None:
    problem = MOE.problem(SMALL, 2, "sm_90a")
    answer = judge.expected(MOE, problem, MOE.inputs(problem, "normal", 1, "cpu"))
    assert torch.equal(answer.rounded["y"], answer.rounded["y"].bfloat16().double())
    assert not torch.equal(answer.true["y"], answer.true["y"].bfloat16().double())
    assert answer.stock["y"].dtype is torch.bfloat16 and answer.true["y"].dtype is torch.float64


@pytest.mark.parametrize("name", ["attn_res", "oproj_allreduce_residual", "moe_tail", "mla_q", "lm_head_argmax"])
def test_calls_with_scalars_and_row_states_get_the_answers_of_single_calls(name: str) -> None:
    op = REGISTRY.get(name)
    problem = op.problem(SMALL, 2, "sm_90a")
    first = op.inputs(problem, "normal", 1, "cpu")
    moving = [t.name for t in op.present(problem) if t.role in (Role.IN, Role.STATE)]
    drawn = [op.inputs(problem, "normal", seed, "cpu") for seed in range(2, 5)]
    many = [{**first, **{n: values[n] for n in moving}} for values in drawn]
    assert judge.joins(op, problem)
    got = judge.expected_many(op, problem, many)
    assert len(got) == 3
    for values, joined in zip(many, got, strict=True):
        single = judge.expected(op, problem, values)
        for spec in op.outputs(problem):
            one, other = single.true[spec.name], joined.true[spec.name]
            assert one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-11, atol=1e-12)
            assert torch.equal(single.rounded[spec.name].float(), joined.rounded[spec.name].float())
            assert joined.stock[spec.name].shape == one.shape


def test_calls_with_other_scalars_are_answered_one_by_one() -> None:
    problem = RES.problem(SMALL, 2, "sm_90a")
    values = RES.inputs(problem, "normal", 1, "cpu")
    one, two = judge.expected_many(RES, problem, [values, {**values, "eps_out": 0.5}])
    assert torch.equal(one.true["out"], judge.expected(RES, problem, values).true["out"])
    assert not torch.equal(one.true["out"], two.true["out"])


def test_states_without_rows_are_never_joined() -> None:
    op = REGISTRY.get("kda_core")
    problem = op.problem(SMALL, 2, "sm_90a")
    assert not judge.joins(op, problem)
    values = op.inputs(problem, "normal", 1, "cpu")
    one, two = judge.expected_many(op, problem, [values, values])
    assert torch.equal(one.true["s"], two.true["s"]) and one.true["s"].shape == values["s"].shape  # type: ignore[union-attr]


def test_many_calls_are_answered_in_passes_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "JOINED_ROWS", 5)
    SAID.clear()
    op = _Sized()
    problem = op.problem(SMALL, 2, "sm_90a")
    first = op.inputs(problem, "normal", 1, "cpu")
    many = [{**first, "m": op.inputs(problem, "normal", seed, "cpu")["m"]} for seed in range(5)]
    got = judge.expected_many(op, problem, many)
    assert [rows for rows, _ in SAID[::2]] == [4, 4, 2]
    for values, answer in zip(many, got, strict=True):
        assert torch.allclose(answer.true["y"], judge.expected(MOE, problem, values).true["y"], rtol=1e-11)
    monkeypatch.setattr(judge, "JOINED_ROWS", 1)
    assert len(judge.expected_many(MOE, problem, many)) == 5


def test_a_chain_carries_each_answers_own_state() -> None:
    problem = RES.problem(SMALL, 2, "sm_90a")
    first = RES.inputs(problem, "normal", 1, "cpu")
    chain = judge.Chain(RES, problem, first)
    one = chain.step(None)
    second = RES.inputs(problem, "normal", 2, "cpu")
    two = chain.step(second)
    want = one.rounded["prefix"].double() + second["delta"].double()  # type: ignore[union-attr]
    assert torch.equal(two.rounded["prefix"], want.bfloat16().double())
    assert not torch.equal(two.true["prefix"], two.rounded["prefix"]), "the true chain is not rounded"
    assert torch.equal(chain.before["prefix"], one.rounded["prefix"].bfloat16())  # type: ignore[arg-type]


def row(strain: float, what: str = "normal") -> judge.Row:
    errors = Errors(strain, 1.0, 1.0, strain, 1.0, 0.0, 0.0, 1.0)
    return judge.Row("p", what, "y", 7, errors, 1.0, 1.0)


def test_the_table_keeps_the_worst_of_many_and_counts_them() -> None:
    table = judge.Table()
    table.add([row(0.2), row(0.7), row(0.4), row(0.1, "large")])
    kept = {r["what"]: (r["strain"], r["judged"]) for r in table.as_json()}
    assert kept == {"normal": (0.7, 3), "large": (0.1, 1)}
    assert table.failed() == []


def test_an_exact_tensor_differs_by_one_bit_and_fails() -> None:
    problem = RES.problem(SMALL, 1, "sm_90a")
    values = RES.inputs(problem, "normal", 1, "cpu")
    answer = judge.expected(RES, problem, values)
    got = {n: t.bfloat16() for n, t in answer.rounded.items()}
    assert not [r for r in judge.judge_outputs(RES, problem, values, got, answer, "normal", 1) if r.complaint]
    got["prefix"].view(torch.int16)[0, 0] ^= 1
    failed = [r for r in judge.judge_outputs(RES, problem, values, got, answer, "normal", 1) if r.complaint]
    assert [(r.output, r.code) for r in failed] == [("prefix", "exact")]


def test_a_broken_hard_rule_is_its_own_row() -> None:
    problem = RES.problem(SMALL, 1, "sm_90a")
    values = RES.inputs(problem, "normal", 1, "cpu")
    answer = judge.expected(RES, problem, values)
    got = {n: t.bfloat16() for n, t in answer.rounded.items()}
    got["blocks"] = got["blocks"] + 1
    codes = {r.code for r in judge.judge_outputs(RES, problem, values, got, answer, "normal", 1) if r.complaint}
    assert codes == {"exact", "hard_rule"}


def errors(true: float, rounded: float) -> Errors:
    return Errors(true, 1.0, 1.0, rounded, 1.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("found", "allowed", "strain"),
    [
        (errors(0.5, 0.9), (1.0, 1.0), 0.9),
        (errors(0.9, 0.5), (1.0, 1.0), 0.9),
        (errors(0.5, 0.1), (0.25, 1.0), 2.0),
        (errors(0.0, 0.5), (0.0, 1.0), 0.5),
        (errors(0.0, 0.0), (0.0, 0.0), 0.0),
        (errors(0.1, 0.5), (0.0, 1.0), float("inf")),
        (errors(1.0, 0.5), (0.0, 1.0), float("inf")),
        (errors(0.1, 0.5), (1e-9, 1.0), 0.1 / 1e-9),
    ],
)
def test_strain_is_the_larger_part_of_what_is_allowed(
    found: Errors, allowed: tuple[float, float], strain: float
) -> None:
    assert judge.Row("p", "w", "y", 7, found, *allowed).strain == pytest.approx(strain, rel=1e-12)


def test_a_row_without_distances_is_strained_by_its_complaint_alone() -> None:
    assert judge.Row("p", "w", "y", 7, None, 0.0, 0.0).strain == 0.0
    assert judge.Row("p", "w", "y", 7, None, 0.0, 0.0, "exact", "differs").strain == 2.0


def test_a_row_is_written_with_its_distances_and_without_what_is_empty() -> None:
    got = judge.Row("p", "w", "y", 7, errors(0.5, 0.9), 1.0, 2.0).as_json()
    names = {"problem", "what", "output", "seed", "allowed_true", "allowed_rounded", "strain", *vars(errors(0, 0))}
    assert set(got) == names and (got["candidate_true"], got["candidate_rounded"], got["strain"]) == (0.5, 0.9, 0.5)
    bare = judge.Row("p", "w", "", 7, None, 0.0, 0.0, "hard_rule", "broken").as_json()
    assert bare == {
        "problem": "p", "what": "w", "seed": 7, "allowed_true": 0.0, "allowed_rounded": 0.0,
        "code": "hard_rule", "complaint": "broken", "strain": 2.0,
    }  # fmt: skip


def test_the_table_tells_breaches_apart_and_keeps_the_first_of_equals() -> None:
    table, breach = judge.Table(), judge.Row("p", "w", "", 7, None, 0.0, 0.0, "hard_rule", "one")
    table.add([breach, replace(breach, complaint="two"), replace(breach, seed=8)])
    table.add([row(0.5), replace(row(0.5), seed=9)])
    assert [(r["seed"], r["judged"]) for r in table.as_json()] == [(7, 2), (7, 1), (7, 2)]
    assert [r.complaint for r in table.failed()] == ["one", "two"]
    table.add([replace(row(0.25), output="z")])
    assert [(r["output"], r["strain"]) for r in table.as_json()[2:]] == [("y", 0.5), ("z", 0.25)]


def test_a_next_step_takes_new_inputs_and_scalars_and_nothing_else() -> None:
    problem = RES.problem(SMALL, 2, "sm_90a")
    first, fresh = (RES.inputs(problem, "normal", seed, "cpu") for seed in (1, 2))
    chain = judge.Chain(RES, problem, first)
    one = chain.step(None)
    assert chain.before["prefix"].dtype is torch.bfloat16  # type: ignore[union-attr]
    chain.step({**fresh, "eps_out": 0.5})
    for values in (chain.stock, chain.rounded, chain.true):
        assert values["eps_out"] == 0.5 and values["delta"] is fresh["delta"]
        assert values["w_out"] is first["w_out"], "weights stay"
    assert chain.before["eps_out"] == 0.5 and chain.before["delta"] is fresh["delta"]
    assert not torch.equal(one.rounded["prefix"], first["prefix"].double())  # type: ignore[union-attr]


def test_joined_calls_are_cut_apart_at_their_own_rows() -> None:
    problem = MOE.problem(SMALL, 2, "sm_90a")
    many = [MOE.inputs(problem, "normal", seed, "cpu") for seed in range(2)]
    many[1] = {**many[0], "m": many[1]["m"]}
    got = judge.expected_many(MOE, problem, many)
    assert [answer.stock["y"].shape[0] for answer in got] == [2, 2]
    assert judge.expected_many(MOE, problem, []) == []


class _Sized(MoeShared):
    """Notes how many rows it is said to have."""

    def reference(self, problem: Problem, values: Any, rounded: bool) -> dict[str, torch.Tensor]:
        SAID.append((problem.tokens, values["m"].shape[0]))
        return super().reference(problem, values, rounded)


SAID: list[tuple[int, int]] = []


def test_joined_calls_are_one_problem_of_all_their_rows() -> None:
    op = _Sized()
    problem = op.problem(SMALL, 2, "sm_90a")
    values = op.inputs(problem, "normal", 1, "cpu")
    SAID.clear()
    judge.expected_many(op, problem, [values] * 3)
    assert SAID == [(6, 6), (6, 6)]


X = TensorSpec("x", "f32", ("tokens", "hidden"), Role.IN, "x")
Y = TensorSpec("y", "f32", ("tokens", "hidden"), Role.OUT, "y")
W = TensorSpec("w", "f32", ("hidden",), Role.WEIGHT, "w")
ROW_STATE = TensorSpec("s", "f32", ("tokens",), Role.STATE, "s")
SLOT_STATE = TensorSpec("s", "f32", ("hidden",), Role.STATE, "s")
TABLE = TensorSpec("t", "f32", ("hidden",), Role.IN, "t")
SCALE = ScalarSpec("scale", "f32", "factor", other=3.0)


@pytest.mark.parametrize(
    ("given", "scalar", "joined"),
    [
        ((X, W, Y), (), True),
        ((X, Y), (), True),
        ((X, W, Y, ROW_STATE), (), True),
        ((X, W, Y, SLOT_STATE), (), False),
        ((X, TABLE, Y), (), False),
        ((X, W, Y), (SCALE,), True),
        ((ROW_STATE, Y), (), True),
        ((W, Y), (), False),
    ],
)
def test_calls_are_joined_only_where_rows_alone_move(
    given: tuple[TensorSpec, ...], scalar: tuple[ScalarSpec, ...], joined: bool
) -> None:
    class Made(MoeShared):
        tensors: ClassVar = given
        scalars: ClassVar = scalar

    op = Made()
    assert judge.joins(op, op.problem(SMALL, 2, "sm_90a")) is joined


class _Told:
    """A rule that repeats what it was told."""

    def judge(self, candidate: Any, stock: Any, rounded: Any, true: Any, steps: int) -> Judged:
        return Judged(None, 3.0, 4.0, "error", f"{steps} steps, {float(candidate[0, 0])}")


class _Asking(MoeShared):
    def rule(self, spec: TensorSpec) -> Any:
        return _Told()

    def hard_rules(self, problem: Problem, values: Any, got: Any) -> list[str]:
        return [f"saw {sorted(got)} and {values['sign']}"]


def test_rules_are_asked_for_every_output_and_their_words_become_rows() -> None:
    op, y = _Asking(), torch.full((1, 2), 5.0)
    problem = op.problem(SMALL, 1, "sm_90a")
    answer = judge.Expected({"y": y}, {"y": y}, {"y": y})
    ruled, hard = judge.judge_outputs(op, problem, {"sign": 1.0}, {"y": y}, answer, "normal", 7, 3)
    assert ruled == judge.Row(problem.key, "normal", "y", 7, None, 3.0, 4.0, "error", "y: 3 steps, 5.0")
    assert hard == judge.Row(problem.key, "normal", "", 7, None, 0.0, 0.0, "hard_rule", "saw ['y'] and 1.0")
    (first, _) = judge.judge_outputs(op, problem, {"sign": 1.0}, {"y": y}, answer, "normal", 7)
    assert first.complaint == "y: 1 steps, 5.0"


def test_summaries_of_the_sanitizer_are_counted() -> None:
    assert errors_found("========= ERROR SUMMARY: 0 errors\n") == 0
    assert errors_found("x\n========= ERROR SUMMARY: 3 errors\n") == 3
    assert errors_found("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n") == 1
    assert errors_found("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n") == 0
    assert errors_found("Device not supported") is None


def test_the_sanitizer_sees_each_design_once_at_its_fewest_tokens() -> None:
    specs = [
        replace(stock_spec(MOE.problem(SMALL, tokens, "sm_90a")), design=design)
        for tokens, design in ((8, "fma"), (1, "fma"), (64, "mma"), (16, "mma"))
    ]
    assert [(s.design, s.problem.tokens) for s in representatives(specs)] == [("fma", 1), ("mma", 16)]
