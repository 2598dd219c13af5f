"""lm_head_argmax: numbers by hand, the order of values and its ties, the window and the value bound, traps, costs."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kgen.contract import Values, selftest
from kgen.contract.tensors import Role
from kgen.gates.rows import rows_of
from kgen.ops.lm_head_argmax import PULL, LmHeadArgmax
from kgen.records import Problem

OP = LmHeadArgmax()
BASE, VOCAB, HIDDEN = 3 * 512, 512, 256
Got = dict[str, torch.Tensor]
CASES = [
    pytest.param(OP.problem("nano", tokens, "sm_90a", {"logits": axis}), f.name, id=f"{tokens}-{axis}-{f.name}")
    for tokens in (1, 5)
    for axis in ("no", "yes")
    for f in OP.families
]
each_family = pytest.mark.parametrize("family", [f.name for f in OP.families])


def drawn(family: str, tokens: int = 6, logits: str = "no", seed: int = 3) -> tuple[Problem, Values, torch.Tensor]:
    """A nano point, its inputs and the float64 logits."""
    problem = OP.problem("nano", tokens, "sm_90a", {"logits": logits})
    values = OP.inputs(problem, family, seed, "cpu")
    return problem, values, values["h"].double() @ values["w_head"].double().T


def flat(tops: dict[int, float], scale: float = 1.0) -> tuple[Problem, Values]:
    """One token whose logits are the given ones at these rows and -1 elsewhere, exactly."""
    problem = OP.problem("nano", 1, "sm_90a")
    h, w = torch.zeros(1, HIDDEN), torch.zeros(VOCAB, HIDDEN)
    h[0, 17], w[:, 17] = scale, -1.0
    for row, value in tops.items():
        w[row, 17] = value
    return problem, {"h": h.to(torch.bfloat16), "w_head": w.to(torch.bfloat16), "base_id": BASE}


def answer(row: int, val: float) -> Got:
    return {"id": torch.tensor([BASE + row], dtype=torch.int32), "val": torch.tensor([val])}


def kernel(values: Values, pick: Callable[[torch.Tensor], torch.Tensor]) -> Got:
    """float32 logits, and the row that `pick` chooses."""
    logits = values["h"].float() @ values["w_head"].float().T
    position = pick(logits)
    return {"id": (position + BASE).to(torch.int32), "val": logits.gather(1, position[:, None])[:, 0]}


def first(logits: torch.Tensor) -> torch.Tensor:
    return logits.max(dim=-1).indices


def last(logits: torch.Tensor) -> torch.Tensor:
    return VOCAB - 1 - logits.flip(-1).max(dim=-1).indices


@pytest.mark.parametrize(
    ("dims", "shape"),
    [("k3-tp8", (20480, 7168)), ("k3-tp16", (10240, 7168)), ("vllm-tp1", (20480, 7168)), ("nano", (512, 256))],
)
def test_weights_have_the_published_shapes(dims: str, shape: tuple[int, int]) -> None:
    assert OP.tensors[1].sizes(OP.sizes(OP.problem(dims, 1, "sm_90a"))) == shape


def test_a_row_written_out_in_python_floats() -> None:
    problem, values, _ = drawn("normal", 2, "yes")
    weights = values["w_head"].tolist()
    for rounded in (False, True):
        got = OP.reference(problem, values, rounded)
        for row, h in enumerate(values["h"].tolist()):
            logits = [math.fsum(a * b for a, b in zip(h, w, strict=True)) for w in weights]
            assert got["logits"][row].tolist() == pytest.approx(logits, rel=1e-11, abs=1e-13)
            assert int(got["id"][row]) == BASE + logits.index(max(logits))
            assert float(got["val"][row]) == pytest.approx(max(logits), rel=1e-12)


@pytest.mark.parametrize(("problem", "family"), CASES)
def test_stock_and_a_float32_kernel_pass_on_every_family(problem: Problem, family: str) -> None:
    values = OP.inputs(problem, family, 7, "cpu")
    got = OP.stock(problem)(values)
    assert {n: t.dtype for n, t in got.items()} == {
        "val": torch.float32,
        "id": torch.int32,
        **({"logits": torch.float32} if problem.axes["logits"] == "yes" else {}),
    }
    assert OP.hard_rules(problem, values, got) == []
    mine = kernel(values, first)
    if "logits" in got:
        mine["logits"] = values["h"].float() @ values["w_head"].float().T
    assert OP.hard_rules(problem, values, mine) == []


@pytest.mark.parametrize(("problem", "family"), CASES)
def test_the_reference_passes_its_own_rules(problem: Problem, family: str) -> None:
    values = OP.inputs(problem, family, 9, "cpu")
    got = OP.reference(problem, values, True)
    stored = {n: t.float() if t.is_floating_point() else t for n, t in got.items()}
    assert got["id"].dtype == torch.int32 and OP.hard_rules(problem, values, stored) == []


def test_stock_passes_at_a_rank_of_sixteen() -> None:
    problem = OP.problem("k3-tp16", 1, "sm_90a")
    values = OP.inputs(problem, "narrow_wins", 7, "cpu")
    got = OP.stock(problem)(values)
    assert OP.hard_rules(problem, values, got) == []
    assert OP.hard_rules(problem, values, {**got, "id": got["id"] - 10239}) != []  # the runner-up is the first row


def test_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


@pytest.mark.parametrize(("problem", "family"), CASES)
def test_inputs_are_deterministic_and_seeded(problem: Problem, family: str) -> None:
    one, again, other = (OP.inputs(problem, family, seed, "cpu") for seed in (1, 1, 2))
    assert set(one) == {t.name for t in OP.tensors if t.role is not Role.OUT} | {"base_id"}
    assert all(torch.equal(one[n], again[n]) or one[n].isnan().any() for n in ("h", "w_head"))
    assert not torch.equal(one["w_head"], other["w_head"])


def window(top: float) -> float:
    return 4 * (2**-8 + 256 * 2**-24) * top


def test_planted_families_hold_their_ties_and_gaps() -> None:
    for family in ("exact_ties", "near_ties", "narrow_wins"):
        _, _, logits = drawn(family, 64)
        (best, second), at = logits.topk(3).values[:, :2].T, logits.topk(3).indices
        assert bool((logits.topk(3).values[:, 2] < best - 2 * window(PULL)).all())  # nobody else is near
        gap = best - second
        if family == "exact_ties":
            assert bool((gap < 1e-12).all()) and sorted(at[0, :2].tolist()) == [0, VOCAB - 1]
        else:
            assert bool((at[:, 0] > at[:, 1]).all())  # the lower id is the lesser one
        ratio = gap / window(1.0) / best
        if family == "near_ties":
            assert bool((gap > 1e-3).all()) and float(ratio.max()) < 0.5
        if family == "narrow_wins":
            assert float(ratio.min()) > 1.2 and float(ratio.max()) < 2.2


def test_other_families_hold_the_traps_they_name() -> None:
    assert bool((drawn("all_negative", 64)[2] < 0).all())
    assert bool((drawn("zero_rows")[2][::2] == 0).all())
    assert float(drawn("large")[2].abs().max()) > 1000
    _, values, logits = drawn("nan_row")
    assert logits.isnan().all(-1).tolist() == [False, False, False, True, False, False]
    _, values, logits = drawn("infinite")
    assert bool(logits[::2].isinf().all()) and bool((logits[::2] < 0).any()) and bool(logits[1::2].isfinite().all())
    _, values, logits = drawn("nan_logit")
    assert logits[::2].isnan().sum(-1).tolist() == [1, 1, 1] and bool(logits[0, 257].isnan())
    _, values, _ = drawn("denormal_channels")
    small = (values["h"].double().abs() < 2.0**-126) & (values["h"] != 0)
    assert 0.4 < float(small.double().mean()) < 0.6


def test_exact_numbers_for_values_that_are_not_finite() -> None:
    for family, want in (("nan_row", (BASE, math.nan)), ("nan_logit", (BASE + 257, math.nan))):
        problem, values, _ = drawn(family, 1)
        got = OP.reference(problem, values, True)
        assert int(got["id"][0]) == want[0] and bool(got["val"].isnan())
    problem, values, _ = drawn("infinite", 1)
    positive = (values["w_head"][:, HIDDEN // 3] > 0).tolist()
    got = OP.reference(problem, values, True)
    assert int(got["id"][0]) == BASE + positive.index(True) and float(got["val"][0]) == math.inf


@pytest.mark.parametrize("family", ["exact_ties", "zero_rows", "infinite"])
def test_the_higher_of_equal_ids_is_refused(family: str) -> None:
    problem, values, _ = drawn(family)
    assert OP.hard_rules(problem, values, kernel(values, first)) == []
    breaches = OP.hard_rules(problem, values, kernel(values, last))
    assert breaches == ["id: row 0 ties with a lower id, which must win"]


def test_within_the_window_either_id_is_right_and_beyond_it_only_one() -> None:
    for family, fine in (("near_ties", True), ("narrow_wins", False)):
        problem, values, logits = drawn(family)
        best, second = logits.topk(2).indices.T
        for position, ok in ((best, True), (second, fine)):
            got = {"id": (position + BASE).to(torch.int32), "val": logits.max(-1).values.float()}
            assert (OP.hard_rules(problem, values, got) == []) is ok


def test_the_window_in_numbers() -> None:
    """top = 1: error 2^-8 + 2 * 256 * 2^-24 = 0.0039368, window 0.015747."""
    problem, values = flat({5: 1.0, 9: 1 - 2**-6, 11: 1 - 2**-6 - 2**-8})  # 0.015625 and 0.0195 below
    assert OP.hard_rules(problem, values, answer(5, 1.0)) == []
    assert OP.hard_rules(problem, values, answer(9, 1.0)) == []
    assert OP.hard_rules(problem, values, answer(11, 1.0)) == [
        "id: row 0 is not a maximum, nor within 4 bf16-level errors of it"
    ]


@pytest.mark.parametrize(
    ("scale", "val", "fine"),
    [
        (1.0, 1.0099, True),  # 1e-2 is more than the bf16-level error of 0.0039
        (1.0, 0.9901, True),
        (1.0, 1.0101, False),
        (1.0, 0.9899, False),
        (1024.0, 1028.02, True),  # 1024 (2^-8 + 2 * 256 * 2^-24) = 4.031
        (1024.0, 1028.04, False),
        (1024.0, 1019.96, False),
        (1.0, math.nan, False),
        (1.0, math.inf, False),
    ],
)
def test_the_value_bound_is_absolute_at_small_and_relative_at_large_logits(
    scale: float, val: float, fine: bool
) -> None:
    problem, values = flat({5: 1.0}, scale)
    breaches = OP.hard_rules(problem, values, answer(5, val))
    assert breaches == ([] if fine else ["val: row 0 is too far from the largest logit"])


def no_base(values: Values, got: Got) -> None:
    got["id"] -= BASE


def beyond(values: Values, got: Got) -> None:
    got["id"][0] = BASE + VOCAB


def from_zero(values: Values, got: Got) -> None:
    """A maximum that starts at zero instead of at -inf."""
    got["val"].clamp_(min=0)


def without_nan(values: Values, got: Got) -> None:
    """fmax drops a NaN."""
    logits = (values["h"].float() @ values["w_head"].float().T).nan_to_num(nan=-math.inf, posinf=math.inf)
    got["val"], position = logits.max(dim=-1)
    got["id"] = (position + BASE).to(torch.int32)


def leak(values: Values, got: Got) -> None:
    """A broken row spreads to its neighbour."""
    got["val"][2] = math.nan


def wrong_row(values: Values, got: Got) -> None:
    got["id"][4] = BASE + (got["id"][4] - BASE + 1) % VOCAB


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("normal", no_base),
        ("normal", beyond),
        ("normal", wrong_row),
        ("large", wrong_row),
        ("tiny", wrong_row),
        ("all_negative", from_zero),
        ("nan_row", without_nan),
        ("nan_logit", without_nan),
        ("nan_row", leak),
    ],
)
def test_planted_faults_are_refused_in_one_line(family: str, fault: Callable[[Values, Got], None]) -> None:
    problem, values, _ = drawn(family)
    got = kernel(values, first)
    assert OP.hard_rules(problem, values, got) == []
    fault(values, got)
    breaches = OP.hard_rules(problem, values, got)
    assert breaches and all("\n" not in line for line in breaches)


def test_written_logits_are_judged_and_agree_with_the_choice() -> None:
    problem, values, _ = drawn("normal", 6, "yes")
    got = OP.stock(problem)(values)
    wrong = got["logits"].clone()
    wrong[3, 100] += 0.05
    assert OP.hard_rules(problem, values, {**got, "logits": wrong})[0].startswith("logits[3, 100] is")
    breaches = OP.hard_rules(problem, values, {**got, "val": got["val"] + 1e-3})
    assert breaches == ["val and id are not the first maximum of the logits that were written"]
    zeros = {**got, "logits": torch.zeros_like(wrong)}
    assert len(OP.hard_rules(problem, values, zeros)) == 2


@each_family
def test_a_padded_call_gives_the_rows_of_the_whole_one(family: str) -> None:
    problem, values, _ = drawn(family, 8, "yes")
    part = rows_of(OP, problem, values, 5)
    got = OP.stock(problem)(part)
    assert got["val"].shape == got["id"].shape == (5,) and got["logits"].shape == (5, VOCAB)
    assert OP.hard_rules(replace(problem, tokens=5), part, got) == []
    cut, whole = OP.reference(problem, part, True), OP.reference(problem, values, True)
    assert torch.equal(cut["id"], whole["id"][:5])


@pytest.mark.parametrize(
    ("dims", "megabytes", "gigaflop"),
    [
        ("k3-tp8", (293.70, 294.37, 299.76), (0.294, 2.349, 18.790)),
        ("k3-tp16", (146.86, 147.24, 150.34), (0.147, 1.174, 9.395)),
    ],
)
def test_costs_match_the_published_table_which_writes_the_logits(
    dims: str, megabytes: tuple[float, ...], gigaflop: tuple[float, ...]
) -> None:
    for tokens, mb, gf in zip((1, 8, 64), megabytes, gigaflop, strict=True):
        with_logits, without = (OP.cost(OP.problem(dims, tokens, "sm_90a", {"logits": a})) for a in ("yes", "no"))
        assert with_logits.bytes / 1e6 == pytest.approx(mb, abs=0.0051)
        assert with_logits.flops / 1e9 == pytest.approx(gf, abs=0.00051)
        assert with_logits.bytes - without.bytes == 4 * tokens * OP.dims[dims]["vocab"]
