"""moe_tail: one token in Python floats with float32 sums, the order of ranks, hard rules, traps, costs, hashes."""

import math
import struct

import pytest
import torch

from kgen.contract import Values, relative_l2, selftest
from kgen.contract.tensors import Role
from kgen.gates.rows import rows_of
from kgen.ops.moe_tail import MoeTail
from kgen.records import Problem

OP = MoeTail()
FAMILIES = [f.name for f in OP.families]


def f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def bf16(value: float) -> float:
    """Round to nearest even on the bits of a float32."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def in_order(column: list[float]) -> float:
    total = 0.0
    for value in column:
        total = f32(total + value)
    return bf16(total)


def complaint(problem: Problem, values: Values, got: torch.Tensor) -> str:
    stock = OP.stock(problem)(values)["delta"]
    rounded, true = (OP.reference(problem, values, r)["delta"] for r in (True, False))
    lines = OP.hard_rules(problem, values, {"delta": got})
    return OP.rule(OP.outputs(problem)[0]).judge(got, stock, rounded, true, 1).complaint or "; ".join(lines)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dims", "tokens"), [("nano", 1), ("nano", 16), ("k3-tp8", 2)])
def test_stock_passes_on_every_family(dims: str, tokens: int, family: str) -> None:
    problem = OP.problem(dims, tokens, "sm_90a")
    values = OP.inputs(problem, family, 7, "cpu")
    assert complaint(problem, values, OP.stock(problem)(values)["delta"]) == ""


def test_the_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


@pytest.mark.parametrize("family", ["normal", "cancelling", "growing"])
def test_the_rounded_reference_agrees_with_python_floats(family: str) -> None:
    problem = OP.problem("nano", 1, "sm_90a")
    values = OP.inputs(problem, family, 3, "cpu")
    parts, shared, w_up = (values[n].double().tolist() for n in ("parts", "shared", "w_up"))
    gamma = values["gamma"].double().tolist()
    latent = [in_order([slot[0][c] for slot in parts]) for c in range(128)]
    scale = 1 / math.sqrt(sum(v * v for v in latent) / 128 + 1e-5)
    n = [bf16(v * scale * g) for v, g in zip(latent, gamma, strict=True)]
    want = [
        bf16(bf16(math.fsum(a * b for a, b in zip(n, row, strict=True))) + in_order([slot[0][j] for slot in shared]))
        for j, row in enumerate(w_up)
    ]
    assert OP.reference(problem, values, True)["delta"][0].tolist() == want


def test_the_true_reference_of_whole_columns_by_hand() -> None:
    """Two latent channels 3 and 4 over two ranks, one up-projection weight, one shared value."""
    problem = OP.problem("nano", 1, "sm_90a")
    parts, shared, w_up = torch.zeros(2, 1, 128), torch.zeros(2, 1, 128), torch.zeros(128, 128)
    parts[0, 0, 0], parts[1, 0, 0], parts[1, 0, 1] = 1.0, 2.0, 4.0
    shared[0, 0, 9], shared[1, 0, 9] = 0.5, 0.25
    w_up[9, 1] = 2.0
    values = {"parts": parts, "shared": shared, "gamma": torch.full((128,), 3.0), "w_up": w_up, "eps": 1.0}
    delta = OP.reference(problem, {k: v if k == "eps" else v.bfloat16() for k, v in values.items()}, False)["delta"]
    assert float(delta[0, 9]) == pytest.approx(2 * 3 * 4 / math.sqrt(25 / 128 + 1) + 0.75, rel=1e-12)
    assert int((delta != 0).sum()) == 1


@pytest.mark.parametrize("family", ["rank_order", "zero_latents"])
def test_sums_in_another_order_of_ranks_are_refused(family: str) -> None:
    problem = OP.problem("k3-tp8", 2, "sm_90a")
    values = OP.inputs(problem, family, 7, "cpu")
    turned = {**values, "parts": values["parts"].roll(3, 0), "shared": values["shared"].roll(3, 0)}
    assert complaint(problem, values, OP.stock(problem)(turned)["delta"])


def test_a_latent_sum_left_in_bf16_is_refused_where_ranks_cancel() -> None:
    problem = OP.problem("k3-tp8", 2, "sm_90a")
    values = OP.inputs(problem, "cancelling", 7, "cpu")
    total = values["parts"][0]
    for slot in values["parts"][1:]:
        total = total + slot
    coarse = {**values, "parts": torch.cat([total[None], torch.zeros_like(values["parts"][1:])])}
    assert complaint(problem, values, OP.stock(problem)(coarse)["delta"])


def test_a_token_without_latent_has_exactly_the_shared_sum() -> None:
    problem = OP.problem("nano", 3, "sm_90a")
    values = OP.inputs(problem, "zero_latents", 7, "cpu")
    delta = OP.stock(problem)(values)["delta"]
    bits = delta.clone().view(torch.int16)
    bits[2, 5] += 1
    assert OP.hard_rules(problem, values, {"delta": delta}) == []
    assert len(OP.hard_rules(problem, values, {"delta": bits.view(torch.bfloat16)})) == 1
    bits = delta.clone().view(torch.int16)
    bits[1, 5] += 1  # this token has a latent
    assert OP.hard_rules(problem, values, {"delta": bits.view(torch.bfloat16)}) == []


def test_minus_zero_counts_as_plus_zero() -> None:
    problem = OP.problem("nano", 2, "sm_90a")
    values = OP.inputs(problem, "signed_zero", 7, "cpu")
    assert bool(((values["parts"] == 0) & values["parts"].signbit()).any())
    plus = {**values, **{n: values[n] + 0.0 for n in ("parts", "shared")}}
    assert not bool(((plus["parts"] == 0) & plus["parts"].signbit()).any())
    for run in (OP.stock(problem), lambda v: OP.reference(problem, v, True)):
        assert torch.equal(run(values)["delta"], run(plus)["delta"])
    minus = {**values, **{n: torch.full_like(values[n], -0.0) for n in ("parts", "shared")}}
    assert not bool(OP.stock(problem)(minus)["delta"].signbit().any())


def test_each_trap_family_holds_its_trap() -> None:
    problem = OP.problem("k3-tp8", 8, "sm_90a")
    names = ("cancelling", "rank_order", "zero_latents", "growing", "tiny")
    made = {family: OP.inputs(problem, family, 5, "cpu") for family in names}
    parts = made["cancelling"]["parts"].double()
    assert float((parts[0] + parts[1]).norm() / parts[0].norm()) < 0.03
    swamped = made["rank_order"]["parts"]
    assert (
        torch.equal(swamped[0], -swamped[-1]) and float(swamped[0].double().norm() / swamped[3].double().norm()) > 1e5
    )
    zero = [(made["zero_latents"][n] == 0).flatten(2).all(-1).all(0).tolist() for n in ("parts", "shared")]
    assert zero == [[True, False] * 4, [False] * 8]
    sizes = made["growing"]["parts"].double().square().mean(-1).sqrt().log2()
    assert float(sizes.max() - sizes.min()) > 12
    assert float(made["tiny"]["parts"].double().square().mean()) < 1e-5 * 1e-6


def test_fewer_rows_give_the_same_rows() -> None:
    problem = OP.problem("nano", 16, "sm_90a")
    values = OP.inputs(problem, "normal", 5, "cpu")
    cut = rows_of(OP, problem, values, 5)
    assert cut["parts"].shape == (2, 5, 128)
    for run in (OP.stock(problem), lambda v: OP.reference(problem, v, True)):
        assert relative_l2(run(cut)["delta"], run(values)["delta"][:5]) < 1e-3


def test_inputs_are_deterministic_and_complete() -> None:
    problem = OP.problem("nano", 3, "sm_90a")
    for family in FAMILIES:
        first, again, other = (OP.inputs(problem, family, s, "cpu") for s in (1, 1, 2))
        for spec in (t for t in OP.present(problem) if t.role is not Role.OUT):
            assert first[spec.name].shape == spec.sizes(OP.sizes(problem))
            assert torch.equal(first[spec.name].view(torch.uint8), again[spec.name].view(torch.uint8))
            assert not torch.equal(first[spec.name], other[spec.name])


def test_whole_projections_are_sizes_of_their_own() -> None:
    assert OP.sizes(OP.problem("vllm-tp1", 1, "")) == {"ranks": 1, "latent": 3584, "columns": 7168, "tokens": 1}
    assert OP.sizes(OP.problem("k3-tp16", 1, ""))["columns"] == 448


@pytest.mark.parametrize(
    ("dims", "tokens", "megabytes"),
    [("k3-tp8", 1, 6.43), ("k3-tp8", 8, 6.51), ("k3-tp8", 64, 7.11), ("k3-tp16", 1, 3.22), ("k3-tp16", 64, 3.78)],
)
def test_costs_match_the_published_local_byte_counts(dims: str, tokens: int, megabytes: float) -> None:
    """The published figure counts one slot of parts and shared, and no gamma; this op reads those of all ranks."""
    problem = OP.problem(dims, tokens, "sm_90a")
    size, cost = OP.sizes(problem), OP.cost(problem)
    others = 2 * (size["ranks"] - 1) * tokens * (3584 + size["columns"]) + 2 * 3584
    assert (cost.bytes - others) / 1e6 == pytest.approx(megabytes, abs=0.01)
    assert cost.flops == 2 * tokens * 3584 * size["columns"]
