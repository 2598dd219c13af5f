"""moe_router: choices and weights worked out in Python floats, every rule against a planted fault, traps, costs."""

import math

import pytest
import torch

from kgen.contract import Values, selftest
from kgen.contract.tensors import Role
from kgen.gates.rows import rows_of
from kgen.ops.moe_router import MoeRouter
from kgen.ops.router_rules import CLASSES
from kgen.records import Problem

OP = MoeRouter()
AXES = [{"class": c, "logits": x} for c in CLASSES for x in ("no", "yes")]
FAMILIES = [f.name for f in OP.families]
CASES = [("nano", tokens, family, axes) for tokens in (1, 16) for family in FAMILIES for axes in AXES]
CASES += [("k3-tp8", 2, family, AXES[1]) for family in ("normal", "near_ties", "saturated")]
Got = dict[str, torch.Tensor]


def point(tokens: int = 3, dims: str = "nano", accuracy: str = "exact", logits: str = "no") -> Problem:
    return OP.problem(dims, tokens, "sm_90a", {"class": accuracy, "logits": logits})


def drawn(problem: Problem, family: str, seed: int = 5) -> tuple[Values, Got]:
    values = OP.inputs(problem, family, seed, "cpu")
    return values, OP.stock(problem)(values)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@pytest.mark.parametrize(("dims", "tokens", "family", "axes"), CASES)
def test_stock_and_both_references_keep_the_rules(dims: str, tokens: int, family: str, axes: dict[str, str]) -> None:
    problem = OP.problem(dims, tokens, "sm_90a", axes)
    values, stock = drawn(problem, family)
    assert OP.hard_rules(problem, values, stock) == []
    for rounded in (True, False):
        answer = OP.reference(problem, values, rounded)
        stored = {n: answer[n].to(stock[n].dtype) for n in stock}
        assert OP.hard_rules(problem, values, stored) == []
        assert {n: t.shape for n, t in answer.items()} == {n: t.shape for n, t in stock.items()}


def test_the_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


@pytest.mark.parametrize("seed", [1, 2])
def test_choice_and_weights_agree_with_python_floats(seed: int) -> None:
    problem = point()
    values = OP.inputs(problem, "normal", seed, "cpu")
    got = OP.reference(problem, {**values, "scale": 2.5}, rounded=False)
    m, w_router, bias = (values[n].double().tolist() for n in ("m", "w_router", "bias"))
    for t, row in enumerate(m):
        scores = [sigmoid(math.fsum(a * b for a, b in zip(row, e, strict=True))) for e in w_router]
        order = sorted(range(16), key=lambda e: (-(scores[e] + bias[e]), e))[:4]
        assert got["ids"][t].tolist() == order
        total = sum(scores[e] for e in order) + 1e-20
        assert got["w"][t].tolist() == pytest.approx([2.5 * scores[e] / total for e in order], rel=1e-12)


def test_the_bias_chooses_but_does_not_weigh() -> None:
    problem = point(1)
    values = OP.inputs(problem, "normal", 1, "cpu")
    bias = torch.zeros(16)
    bias[[2, 7, 11, 13]] = torch.tensor([5.0, 8.0, 6.0, 7.0])
    zero = {**values, "m": torch.zeros_like(values["m"]), "bias": bias}
    got = OP.reference(problem, zero, rounded=True)
    assert got["ids"].tolist() == [[7, 13, 11, 2]]
    assert got["w"].tolist() == [[0.25] * 4]


def test_ties_go_to_the_lower_id_and_nan_comes_last() -> None:
    problem = point(1)
    values = OP.inputs(problem, "normal", 1, "cpu")
    m, w_router = torch.zeros(1, 256), torch.zeros(16, 256)
    m[0, 0] = 1.0
    w_router[:, 0] = torch.tensor([math.nan, *[0.0] * 8, 1.0, 1.0, *[0.0] * 4, math.nan])
    made = {**values, "m": m.bfloat16(), "w_router": w_router.bfloat16(), "bias": torch.zeros(16)}
    assert OP.reference(problem, made, rounded=False)["ids"].tolist() == [[9, 10, 1, 2]]
    made["w_router"][4:] = math.nan  # three numbers are left: the fourth place goes to the lowest NaN
    answer = OP.reference(problem, made, rounded=False)
    assert answer["ids"].tolist() == [[1, 2, 3, 0]]
    assert bool(answer["w"].isnan().all())
    assert OP.stock(problem)(made)["ids"].tolist() == [[1, 2, 3, 0]]


def swapped(ids: torch.Tensor, token: int, a: int, b: int) -> torch.Tensor:
    got = ids.clone()
    got[token, a], got[token, b] = ids[token, b], ids[token, a]
    return got


def test_swapped_and_replaced_ids_are_refused_where_gaps_are_clear() -> None:
    problem = point()
    values, stock = drawn(problem, "clear")
    other = next(e for e in range(16) if e not in stock["ids"][1].tolist())
    replaced = stock["ids"].clone()
    replaced[1, 3] = other
    for ids, words in ((swapped(stock["ids"], 1, 0, 1), "out of order"), (replaced, "left out")):
        lines = OP.hard_rules(problem, values, {**stock, "ids": ids})
        assert any("ids differ from the reference" in x and "token 1" in x for x in lines)
        assert any(words in x for x in lines)


@pytest.mark.parametrize(("bad", "words"), [(16, "out of range"), (-1, "out of range"), (None, "returned twice")])
def test_invalid_ids_are_refused(bad: int | None, words: str) -> None:
    problem = point()
    values, stock = drawn(problem, "normal")
    ids = stock["ids"].clone()
    ids[2, 1] = ids[2, 0] if bad is None else bad
    lines = OP.hard_rules(problem, values, {**stock, "ids": ids})
    assert len(lines) == 1 and words in lines[0]


def two_close(gap: float, accuracy: str) -> tuple[Problem, Values, Got]:
    """Biased scores 0.5 + (4, 3, 2, 1 + gap, 1, 0, ...) for experts 0..15."""
    problem = point(1, accuracy=accuracy)
    values = OP.inputs(problem, "normal", 1, "cpu")
    bias = torch.tensor([4.0, 3.0, 2.0, 1.0 + gap, 1.0, *[0.0] * 11])
    values = {**values, "m": torch.zeros_like(values["m"]), "bias": bias}
    return problem, values, OP.stock(problem)(values)


@pytest.mark.parametrize(
    ("gap", "accuracy", "passes"),
    [(5e-6, "exact", True), (5e-5, "exact", False), (5e-4, "fast", True), (5e-3, "fast", False)],
)
def test_the_last_place_may_change_hands_inside_the_window_only(gap: float, accuracy: str, passes: bool) -> None:
    problem, values, stock = two_close(gap, accuracy)
    assert stock["ids"].tolist() == [[0, 1, 2, 3]]
    got = {**stock, "ids": torch.tensor([[0, 1, 2, 4]], dtype=torch.int32)}
    assert (OP.hard_rules(problem, values, got) == []) is passes


def test_a_better_expert_may_not_be_dropped_for_one_inside_the_window() -> None:
    problem, values, stock = two_close(5e-6, "exact")
    got = {**stock, "ids": torch.tensor([[1, 2, 3, 4]], dtype=torch.int32)}
    assert any("left out" in line for line in OP.hard_rules(problem, values, got))


def test_a_near_tie_at_the_top_does_not_excuse_the_last_places() -> None:
    problem, values, _ = two_close(5e-5, "exact")
    values["bias"][1] = 4.0 - 2e-6
    stock = OP.stock(problem)(values)
    for ids, passes in (([1, 0, 2, 3], True), ([0, 1, 2, 4], False), ([0, 1, 3, 2], False)):
        got = {**stock, "ids": torch.tensor([ids], dtype=torch.int32)}
        assert (OP.hard_rules(problem, values, got) == []) is passes


@pytest.mark.parametrize("ids", [[1, 0, 2, 3], [0, 1, 2, 4]])
def test_true_ties_must_keep_the_lower_id_first_and_in(ids: list[int]) -> None:
    problem, values, _ = two_close(0.0, "fast")
    values["bias"] = torch.tensor([4.0, 4.0, 2.0, 1.0, 1.0, *[0.0] * 11])
    got = {"ids": torch.tensor([ids], dtype=torch.int32), "w": torch.full((1, 4), 0.25).bfloat16()}
    assert [line for line in OP.hard_rules(problem, values, got) if "tie" in line]
    assert OP.hard_rules(problem, values, {**got, "ids": torch.tensor([[0, 1, 2, 3]], dtype=torch.int32)}) == []


@pytest.mark.parametrize("accuracy", CLASSES)
def test_a_weight_two_steps_off_is_refused_and_one_step_is_not(accuracy: str) -> None:
    problem = point(accuracy=accuracy)
    values, stock = drawn(problem, "clear")
    bits = stock["w"].view(torch.int16)
    for steps, passes in ((0, True), (3, False)):
        moved = bits.clone()
        moved[1, 2] += steps
        lines = OP.hard_rules(problem, values, {**stock, "w": moved.view(torch.bfloat16)})
        assert (lines == []) is passes
    biased = stock["w"].flip(1)  # the right weights in the wrong places
    assert OP.hard_rules(problem, values, {**stock, "w": biased})


def test_only_the_fast_class_may_have_a_coarse_sigmoid() -> None:
    scores = {}
    for accuracy in CLASSES:
        problem = point(accuracy=accuracy)
        values, stock = drawn(problem, "large_bias")
        logits = values["m"].double() @ values["w_router"].double().T
        coarse = torch.sigmoid(logits) + 2e-4
        chosen = coarse.gather(1, stock["ids"].long())
        w = (chosen / chosen.sum(1, keepdim=True)).bfloat16()
        assert OP.hard_rules(problem, values, {**stock, "w": w}) == []  # ordinary scores: within a bf16 step
        values["w_router"] = values["w_router"] * 0 - 0.001 * values["m"][:1].sign()  # scores near 1e-3 of token 0
        values["m"] = values["m"].abs().sign() * values["m"][:1].sign() * 32
        stock = OP.stock(problem)(values)
        tiny = torch.sigmoid(values["m"].double() @ values["w_router"].double().T).gather(1, stock["ids"].long())
        tiny[:, 0] += 2e-4
        scores[accuracy] = OP.hard_rules(problem, values, {**stock, "w": (tiny / tiny.sum(1, keepdim=True)).bfloat16()})
    assert scores["fast"] == [] and any("weight" in line for line in scores["exact"])


@pytest.mark.parametrize("family", ["normal", "saturated", "not_finite"])
def test_logits_rounded_to_bf16_are_refused(family: str) -> None:
    problem = point(8, logits="yes")
    values, stock = drawn(problem, family)
    coarse = {**stock, "logits": stock["logits"].bfloat16().float()}
    assert any("logit" in line for line in OP.hard_rules(problem, values, coarse))
    assert OP.hard_rules(problem, values, {**stock, "logits": torch.zeros_like(stock["logits"])})


def gaps(problem: Problem, family: str) -> torch.Tensor:
    values = OP.inputs(problem, family, 5, "cpu")
    logits = values["m"].double() @ values["w_router"].double().T
    biased = (torch.sigmoid(logits) + values["bias"].double()).nan_to_num(-1.0)
    top = biased.sort(dim=1, descending=True).values[:, : OP.sizes(problem)["top_k"] + 1]
    return top[:, :-1] - top[:, 1:]


def test_each_trap_family_holds_its_trap() -> None:
    problem = point(16, "k3-tp8")
    assert float((gaps(problem, "clear") > 1e-3).all(1).double().mean()) > 0.5
    near = gaps(problem, "near_ties")
    assert bool(((near > 0) & (near < 1e-5)).any()) and bool(((near > 1e-5) & (near < 1e-3)).any())
    assert float((gaps(problem, "exact_ties") == 0).double().mean()) > 0.5
    values = OP.inputs(problem, "saturated", 5, "cpu")
    logits = values["m"].double() @ values["w_router"].double().T
    assert int((logits >= 40).sum(1).min()) > 20 and int((logits <= -40).sum(1).min()) > 20
    values, stock = drawn(problem, "not_finite")
    assert bool((values["m"].float() @ values["w_router"].float().T).isinf().any())
    assert bool(stock["w"][1].isnan().all()) and stock["ids"][1].tolist() == list(range(16))
    assert not bool((stock["ids"] == 2).any(1)[[0, *range(2, 16)]].any())  # the expert with a NaN row is not chosen
    values, stock = drawn(problem, "zero_rows")
    by_bias = (0.5 + values["bias"]).sort(descending=True, stable=True).indices[:16]
    assert stock["ids"][0].tolist() == by_bias.tolist()


def test_fewer_rows_give_the_same_rows() -> None:
    problem = point(16, logits="yes")
    values, whole = drawn(problem, "normal")
    cut = rows_of(OP, problem, values, 5)
    for got, want in ((OP.stock(problem)(cut), whole), (OP.reference(problem, cut, True), None)):
        want = want or OP.reference(problem, values, True)
        assert got["ids"].tolist() == want["ids"][:5].tolist()
        assert OP.hard_rules(problem, cut, {n: got[n].to(whole[n].dtype) for n in whole}) == []


def test_inputs_are_deterministic_and_complete() -> None:
    problem = point(logits="yes")
    for family in FAMILIES:
        first, again, other = (OP.inputs(problem, family, s, "cpu") for s in (1, 1, 2))
        assert set(first) == {t.name for t in OP.present(problem) if t.role is not Role.OUT} | {"scale"}
        for spec in (t for t in OP.present(problem) if t.role is not Role.OUT):
            assert first[spec.name].shape == spec.sizes(OP.sizes(problem))
            assert torch.equal(first[spec.name].view(torch.uint8), again[spec.name].view(torch.uint8))
        assert not torch.equal(first["m"].nan_to_num(), other["m"].nan_to_num())


@pytest.mark.parametrize(("tokens", "megabytes"), [(1, 12.86), (8, 12.99), (64, 14.00)])
def test_costs_match_the_published_byte_counts(tokens: int, megabytes: float) -> None:
    cost = OP.cost(point(tokens, "k3-tp8", logits="yes"))
    assert cost.bytes / 1e6 == pytest.approx(megabytes, abs=0.01)
    assert cost.flops == 2 * tokens * 896 * 7168
    assert OP.cost(point(tokens, "k3-tp8")).bytes == cost.bytes - 4 * 896 * tokens
