"""The judge's answers: state chains, joined rows, and the table's worst rows."""

from dataclasses import replace

import torch

from kgen.contract import Errors
from kgen.gates import judge
from kgen.gates.runner.job import stock_spec
from kgen.gates.sanitizer import errors_found, representatives
from kgen.ops import REGISTRY

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


def test_state_ops_are_never_joined() -> None:
    problem = RES.problem(SMALL, 2, "sm_90a")
    values = RES.inputs(problem, "normal", 1, "cpu")
    answers = judge.expected_many(RES, problem, [values, values])
    assert len(answers) == 2 and answers[0].true["out"].shape == (2, RES.dims[SMALL]["hidden"])


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
