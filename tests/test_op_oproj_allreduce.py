"""oproj_allreduce_residual: hand-rounded sums, rank order, what ranks agree on, what its rules refuse, its cost."""

import struct
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

from kgen.contract.selftest import complaints
from kgen.gates.judge import Chain, expected, judge_outputs
from kgen.gates.rows import rows_of
from kgen.ops.attn_res import AttnRes
from kgen.ops.attn_res_math import mixed, nearest
from kgen.ops.oproj_allreduce_residual import OprojAllreduceResidual
from kgen.ops.oproj_partial import OprojPartial
from kgen.records import Problem

OP = OprojAllreduceResidual()
VARIANTS = OP.axes["variant"]
Values = dict[str, Any]


class EightRanks(OprojAllreduceResidual):
    """Two ranks cannot show an order of summation."""

    dims: ClassVar = {"nano": {"hidden": 256, "local": 64, "ranks": 8, "slots": 2}}


class ThreeRanks(OprojAllreduceResidual):
    dims: ClassVar = {"nano": {"hidden": 8, "local": 4, "ranks": 3, "slots": 2}}


EIGHT = EightRanks()


def problem(variant: str = "delta", tokens: int = 2) -> Problem:
    return OP.problem("nano", tokens, "sm_90a", {"variant": variant})


def refused(op: OprojAllreduceResidual, point: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
    rows = judge_outputs(op, point, values, got, expected(op, point, values), "test", 0)
    return [row.complaint for row in rows if row.complaint]


@pytest.mark.parametrize("op", [OP, EIGHT], ids=["two", "eight"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", [f.name for f in (*OP.families, *OP.scenarios)])
def test_the_stock_op_passes_every_family(op: OprojAllreduceResidual, family: str, variant: str) -> None:
    point = problem(variant)
    values = op.inputs(point, family, 11, "cpu")
    wanted = {t.name for t in op.present(point) if t.role != "out"} | {s.name for s in op.scalars}
    assert set(values) == wanted
    assert refused(op, point, values, op.stock(point)(values)) == []


def test_the_references_are_fit_to_judge() -> None:
    assert complaints(OP) == ()


def f32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def bf16(x: float) -> float:
    """The nearer of the two bf16 values round x, ties to even, by the bits of float32 (x is one)."""
    bits = struct.unpack("I", struct.pack("f", x))[0]
    low = bits & 0xFFFF
    up = low > 0x8000 or (low == 0x8000 and bits >> 16 & 1)
    return float(struct.unpack("f", struct.pack("I", ((bits >> 16) + up) << 16))[0])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_prefix_is_the_hand_rounded_sum_in_rank_order(rank: int, variant: str) -> None:
    op, point = ThreeRanks(), problem(variant)
    values = {**op.inputs(point, "normal", 3, "cpu"), "rank": rank}
    got = op.reference(point, values, rounded=True)["prefix"]
    y, w_o, peers = (values[n].tolist() for n in ("y", "w_o", "peers"))
    for token in range(2):
        for c in range(8):
            own = bf16(f32(sum(a * b for a, b in zip(y[token], w_o[c], strict=True))))
            parts = [own if r == rank else peers[r][token][c] for r in range(3)]
            o = bf16(f32(f32(parts[0] + parts[1]) + parts[2]))
            p = bf16(f32(values["prefix"][token, c].item() + o)) if variant == "delta" else o
            assert float(got[token, c]) == p


@pytest.mark.parametrize("variant", VARIANTS)
def test_after_the_sum_it_is_attn_res(variant: str) -> None:
    point, mix = problem(variant), AttnRes()
    values = OP.inputs(point, "all_blocks", 3, "cpu")
    own = nearest(values["y"].double() @ values["w_o"].double().T)
    parts = [own.float() if r == values["rank"] else values["peers"][r].float() for r in range(2)]
    o = (parts[0] + parts[1]).to(torch.bfloat16)
    taken = {"prefix": values["prefix"], "delta": o} if variant == "delta" else {"prefix": o}
    other = mix.problem("nano", 2, "sm_90a", {"variant": variant})
    want = mix.reference(other, {**values, **taken, "write_idx": -1}, rounded=True)
    got = OP.reference(point, values, rounded=True)
    assert all(torch.equal(got[name], want[name]) for name in ("out", "prefix", "blocks"))


@pytest.mark.parametrize("family", ["normal", "rank_order"])
def test_all_ranks_get_the_same_bits(family: str) -> None:
    point, ranks = problem(), 8
    base = EIGHT.inputs(point, family, 3, "cpu")
    ys = [EIGHT.inputs(point, family, 50 + r, "cpu")["y"] for r in range(ranks)]
    sent = torch.stack([F.linear(y, base["w_o"]) for y in ys])
    if family == "rank_order":
        sent[1], sent[6] = base["peers"][0], base["peers"][7]
        ys[1], ys[6] = ys[0], ys[0]
    for run in (EIGHT.stock(point), lambda v: EIGHT.reference(point, v, rounded=True)):
        answers = []
        for r in range(ranks):
            if family == "rank_order" and r in (1, 6):
                continue  # their partials are not products
            mailbox = sent.clone()
            mailbox[r] = torch.nan
            answers.append(run({**base, "y": ys[r], "peers": mailbox, "rank": r}))
        assert all(torch.equal(a[n], answers[0][n]) for a in answers for n in ("out", "prefix"))
        assert bool(answers[0]["prefix"].isfinite().all())


Sum = Callable[[list[torch.Tensor]], torch.Tensor]


def in_turn(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total


def backwards(parts: list[torch.Tensor]) -> torch.Tensor:
    return in_turn(parts[::-1])


def as_a_tree(parts: list[torch.Tensor]) -> torch.Tensor:
    while len(parts) > 1:
        parts = [a.float() + b.float() for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def wider(parts: list[torch.Tensor]) -> torch.Tensor:
    return sum(p.double() for p in parts).float()  # type: ignore[union-attr]


def own_first(parts: list[torch.Tensor]) -> torch.Tensor:
    return in_turn([parts[4], *parts[:4], *parts[5:]])


def in_bf16(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].to(torch.bfloat16)
    for part in parts[1:]:
        total = total + part.to(torch.bfloat16)
    return total.float()


def imitated(values: Values, summed: Sum, round_own: bool = True, round_o: bool = True) -> dict[str, torch.Tensor]:
    """The op with another sum over the ranks, or with a rounding left out."""
    own = values["y"].float() @ values["w_o"].float().T
    own = nearest(own) if round_own else own
    o = summed([own if r == values["rank"] else part for r, part in enumerate(values["peers"])])
    p = nearest(values["prefix"].float() + (nearest(o) if round_o else o))
    out = mixed(p, values).to(torch.bfloat16)
    return {"out": out, "prefix": p.to(torch.bfloat16), "blocks": values["blocks"].clone()}


@pytest.mark.parametrize("family", [f.name for f in OP.families])
def test_another_order_inside_the_projection_passes(family: str) -> None:
    values = EIGHT.inputs(problem(), family, 3, "cpu")
    assert refused(EIGHT, problem(), values, imitated(values, in_turn)) == []


@pytest.mark.parametrize("summed", [backwards, as_a_tree, wider, own_first])
def test_another_order_of_the_ranks_is_refused(summed: Sum) -> None:
    values = EIGHT.inputs(problem(), "rank_order", 3, "cpu")
    found = refused(EIGHT, problem(), values, imitated(values, summed))
    assert any("prefix: relL2" in line for line in found)
    assert any("must be between" in line for line in found)


def test_a_sum_that_is_kept_in_bf16_is_refused() -> None:
    values = EIGHT.inputs(problem(), "cancelling", 3, "cpu")
    assert any("prefix: relL2" in line for line in refused(EIGHT, problem(), values, imitated(values, in_bf16)))


@pytest.mark.parametrize("left_out", ["round_own", "round_o"])
@pytest.mark.parametrize("op", [OP, EIGHT], ids=["two", "eight"])
def test_a_missing_rounding_is_refused(op: OprojAllreduceResidual, left_out: str) -> None:
    values = op.inputs(problem(), "normal", 3, "cpu")
    got = imitated(values, in_turn, **{left_out: False})
    assert any("prefix: relL2" in line for line in refused(op, problem(), values, got))


def test_one_wrong_element_is_refused_though_the_norm_is_fine() -> None:
    point = OP.problem("nano", 64, "sm_90a")
    values = OP.inputs(point, "normal", 3, "cpu")
    got = OP.stock(point)(values)
    got["prefix"].view(torch.int16)[5, 7] += 4
    (line,) = refused(OP, point, values, got)
    assert line.startswith("prefix[5, 7] is") and "1 of 16384 elements" in line


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_written_block_is_refused(variant: str) -> None:
    values = OP.inputs(problem(variant), "normal", 3, "cpu")
    got = OP.stock(problem(variant))(values)
    got["blocks"][:, 1] = got["prefix"]
    assert any("writes none" in line for line in refused(OP, problem(variant), values, got))


def test_traps_are_what_they_say() -> None:
    drawn = {f.name: EIGHT.inputs(problem(), f.name, 3, "cpu") for f in OP.families}
    for family, values in drawn.items():
        zeros = values["peers"][values["peers"] == 0]
        assert not bool(torch.signbit(zeros).any()), f"{family}: a sender never stores -0"
    assert [drawn[f]["rank"] for f in ("rank_first", "normal", "rank_last")] == [0, 4, 7]
    assert bool(drawn["unused_inf"]["peers"][4].isinf().all())
    parts = drawn["cancelling"]
    own = F.linear(parts["y"].double(), parts["w_o"].double())
    total = own + parts["peers"][[0, 1, 2, 3, 5, 6, 7]].double().sum(0)
    assert float(total.norm() / own.norm()) < 0.5
    for family in ("rank_order", "cancelling", "growing"):
        product = F.linear(drawn[family]["y"].double(), drawn[family]["w_o"].double())
        assert torch.equal(product, nearest(product)), f"{family}: no order may move the partial"
    assert bool((drawn["denormal"]["peers"].abs() < 2.0**-120).all())


@pytest.mark.parametrize("op", [OP, EIGHT], ids=["two", "eight"])
def test_sixty_four_steps_on_one_state(op: OprojAllreduceResidual) -> None:
    point = problem()
    state = op.inputs(point, "growing", 9, "cpu")
    chain = Chain(op, point, dict(state))
    for step in range(64):
        fresh = op.inputs(point, "growing", 9 + step, "cpu")
        state |= {n: fresh[n] for n in ("y", "peers")}
        answer, got = chain.step(fresh if step else None), imitated(state, in_turn)
        found = judge_outputs(op, point, chain.before, got, answer, "growing", 9, step + 1)
        assert not [row.complaint for row in found if row.complaint]
        state |= {"prefix": got["prefix"]}
    assert 15 < float(state["prefix"].float().square().mean().sqrt()) < 45


def test_fewer_rows_give_the_same_rows() -> None:
    point = problem(tokens=8)
    values = OP.inputs(point, "normal", 4, "cpu")
    cut = rows_of(OP, point, values, 3)
    assert cut["peers"].shape == (2, 3, 256)
    whole, part = (OP.reference(point, v, rounded=True) for v in (values, cut))
    assert all(torch.allclose(whole[name][:3], part[name], rtol=2**-8) for name in whole)


@pytest.mark.parametrize(("dims", "ranks"), [("k3-tp8", 8), ("k3-tp16", 16), ("vllm-tp1", 1)])
@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_the_cost_is_that_of_its_parts_without_what_stays_inside(dims: str, ranks: int, tokens: int) -> None:
    row = 2 * 7168 * tokens
    for variant, saved in (("delta", 2), ("prefix_only", 1)):  # partial and delta, or partial and a read of prefix
        point = OP.problem(dims, tokens, "sm_90a", {"variant": variant})
        partial = OprojPartial().cost(OprojPartial().problem(dims, tokens, "sm_90a"))
        mix = AttnRes().cost(AttnRes().problem(dims, tokens, "sm_90a", {"variant": variant}))
        want = partial.bytes + mix.bytes + (ranks - 1 - saved) * row
        assert OP.cost(point).bytes == want
        assert OP.cost_of(point, {"nb": 8}).bytes == want + 4 * row
        assert OP.cost(point).flops == partial.flops + mix.flops + tokens * 7168 * ranks


def test_at_served_sizes_a_rounding_of_the_partial_may_flip_and_passes() -> None:
    point = OP.problem("k3-tp8", 1, "sm_90a")
    values = OP.inputs(point, "normal", 3, "cpu")
    got = imitated(values, in_turn)
    assert refused(OP, point, values, got) == []
