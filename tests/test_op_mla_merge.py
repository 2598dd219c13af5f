"""mla_out_gate and mla_dcp_merge by hand, and a context split over shards against the same context in one piece."""

import math
from collections.abc import Mapping

import pytest
import torch

from kgen.contract import Op, Values, relative_l2
from kgen.ops.mla_dcp_merge import MlaDcpMerge
from kgen.ops.mla_decode import MlaDecode
from kgen.ops.mla_math import EMPTY_LSE, LATENT, ROW
from kgen.ops.mla_out_gate import MlaOutGate

GATE, MERGE, DECODE = MlaOutGate(), MlaDcpMerge(), MlaDecode()
GATE_AT = 128 + 576  # of nano


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def drawn(op: Op, family: str, tokens: int = 8, seed: int = 3) -> Values:
    return op.inputs(op.problem("nano", tokens, "sm_90a"), family, seed, "cpu")


def answers(op: Op, values: Values, tokens: int = 8) -> list[torch.Tensor]:
    problem = op.problem("nano", tokens, "sm_90a")
    return [op.stock(problem)(values)["y"].double(), op.reference(problem, values, True)["y"]]


def test_the_gated_values_by_plain_loops() -> None:
    values = drawn(GATE, "normal", 1)
    got = GATE.reference(GATE.problem("nano", 1, "sm_90a"), values, False)["y"]
    for head, column in ((0, 0), (0, 127), (1, 0), (1, 77)):
        latent, weights = values["lat"][0, head].tolist(), values["w_uv"][head, :, column].tolist()
        value = sum(a * b for a, b in zip(latent, weights, strict=True))
        want = value * sigmoid(float(values["p"][0, GATE_AT + 128 * head + column]))
        assert float(got[0, 128 * head + column]) == pytest.approx(want, rel=1e-10)


def test_the_value_is_rounded_before_the_gate_and_again_after() -> None:
    values = drawn(GATE, "normal", 1)
    values["lat"][:], values["w_uv"][:], values["p"][:] = 0.0, 0.0, 0.0
    values["lat"][0, 1, 3], values["w_uv"][1, 3, 5] = 1.0625, 1.1875
    values["p"][0, GATE_AT + 128 + 5] = 1.0
    for got in answers(GATE, values, 1):
        # 1.26171875 -> 1.265625; times 0.731059 is 236.86 / 256 -> 237 / 256; without the first rounding 236.13 -> 236
        assert float(got[0, 128 + 5]) == 237 / 256
        assert int((got != 0).sum()) == 1


@pytest.mark.parametrize("family", ["unwritten", "empty"])
def test_rows_of_length_zero_are_zero_whatever_the_latent_holds(family: str) -> None:
    values = drawn(GATE, family)
    empty = values["lengths"] == 0
    assert int(empty.sum()) == (8 if family == "empty" else 4) and bool(values["lat"][empty].isnan().all())
    for got in answers(GATE, values):
        assert not bool(got[empty].any()) and bool((got[~empty] != 0).any(1).all())


def test_every_gate_family_holds_its_trap() -> None:
    assert int((drawn(GATE, "normal")["lengths"] == 0).sum()) == 1
    gates = drawn(GATE, "gate_extremes")["p"][:, GATE_AT:].float()
    assert float(gates.max()) > 100 and float(gates.min()) < -100


def test_ignoring_the_lengths_or_the_gate_fails() -> None:
    problem = GATE.problem("nano", 8, "sm_90a")
    values = drawn(GATE, "normal")
    blind = GATE.stock(problem)({**values, "lengths": torch.ones_like(values["lengths"])})
    assert GATE.hard_rules(problem, values, blind) == ["y of a token of length 0 is not zero"]
    stock = GATE.stock(problem)(values)["y"]
    rounded, true = (GATE.reference(problem, values, r)["y"] for r in (True, False))
    shifted = GATE.stock(problem)({**values, "p": values["p"].roll(1, -1)})["y"]
    spec = GATE.outputs(problem)[0]
    assert GATE.rule(spec).judge(stock, stock, rounded, true, 1).complaint == ""
    assert GATE.rule(spec).judge(shifted, stock, rounded, true, 1).complaint != ""


def one_hot_merge(lse: tuple[float, float], lat: tuple[float, float]) -> Values:
    """Two shards, one token; output column 128 + 5 is half of the merged latent 3 of head 1."""
    values = drawn(MERGE, "normal", 1)
    values["lat"][:], values["w_uv"][:], values["p"][:] = 0.0, 0.0, 0.0
    values["lat"][:, 0, 1, 3] = torch.tensor(lat)
    values["w_uv"][1, 3, 5] = 1.0
    values["lse"][:, 0, 1] = torch.tensor(lse)
    return values


@pytest.mark.parametrize(
    ("lse", "lat", "merged"),
    [
        ((3.0, 1.0), (10.0, 20.0), 12.0),  # weights 4 : 1
        ((-2000.0, -2001.0), (3.0, 6.0), 4.0),  # 2 : 1, far below where 2^lse is 0
        ((3000.0, 3000.0), (1.0, 2.0), 1.5),  # a tie, far above where it is infinite
        ((5000.0, -5000.0), (1.0, 99.0), 1.0),
        ((EMPTY_LSE, -3000.0), (0.0, 7.0), 7.0),  # an empty shard has no weight, however small the other is
        ((EMPTY_LSE, EMPTY_LSE), (0.0, 0.0), 0.0),
    ],
)
def test_shards_are_weighted_by_powers_of_two(
    lse: tuple[float, float], lat: tuple[float, float], merged: float
) -> None:
    for got in answers(MERGE, one_hot_merge(lse, lat), 1):
        assert float(got[0, 128 + 5]) == merged / 2
        assert int((got != 0).sum()) == (merged != 0)


def test_the_merged_latent_is_rounded_before_its_product() -> None:
    values = one_hot_merge((1.0, 0.0), (1.03125, 1.0))  # 2 : 1, 1.020833 -> 1.0234375
    values["w_uv"][1, 3, 5] = 1.9453125
    exact = MERGE.reference(MERGE.problem("nano", 1, "sm_90a"), values, False)["y"]
    assert float(exact[0, 128 + 5]) == pytest.approx((2 * 1.03125 + 1) / 3 * 1.9453125 / 2, rel=1e-12)
    for got in answers(MERGE, values, 1):
        assert float(got[0, 128 + 5]) == 255 / 256  # 254.84 / 256; without that rounding 254.19


@pytest.mark.parametrize("dims", ["nano", "k3-tp8"])
def test_every_merge_family_holds_its_trap(dims: str) -> None:
    problem = MERGE.problem(dims, 8, "sm_90a")
    ranks = MERGE.sizes(problem)["ranks"]
    lse = {f.name: MERGE.inputs(problem, f.name, 3, "cpu")["lse"] for f in MERGE.families}
    empty = {name: (v == EMPTY_LSE).all(-1).sum(0).tolist() for name, v in lse.items()}  # shards, by token
    assert empty["normal"] == empty["ties"] == empty["spread"] == [0] * 8
    assert empty["some_empty"] == [ranks // 2] * 8 and empty["one_full"] == [ranks - 1] * 8
    assert empty["all_empty"] == [ranks, 0] * 4
    assert bool((lse["ties"] == lse["ties"][0]).all())
    assert float(lse["spread"].max()) > 1024 and float(lse["spread"].min()) < -1024
    values = MERGE.inputs(problem, "some_empty", 3, "cpu")
    assert not bool(values["lat"][values["lse"] == EMPTY_LSE].any())


def test_the_ranks_are_the_tp_width_and_one_in_one_process() -> None:
    found = {d: MERGE.sizes(MERGE.problem(d, 1, ""))["ranks"] for d in MERGE.names()}
    assert found == {"k3-tp8": 8, "k3-tp16": 16, "vllm-tp1": 1, "nano": 2}
    values = MERGE.inputs(MERGE.problem("vllm-tp1", 1, ""), "normal", 3, "cpu")
    assert tuple(values["lat"].shape) == (1, 1, 12, LATENT)


@pytest.mark.parametrize(("family", "value"), [("all_empty", 1e-3), ("normal", math.nan)])
def test_a_planted_fault_breaks_a_hard_rule_of_the_merge(family: str, value: float) -> None:
    problem = MERGE.problem("nano", 8, "sm_90a")
    values = drawn(MERGE, family)
    got = MERGE.stock(problem)(values)
    assert MERGE.hard_rules(problem, values, got) == []
    got["y"][0, 130] = value
    assert len(MERGE.hard_rules(problem, values, got)) == 1


def test_costs_leave_out_what_need_not_be_read() -> None:
    problem = MERGE.problem("k3-tp8", 2, "sm_90a")
    lse = torch.full((8, 2, 12), EMPTY_LSE)
    lse[0] = 1.0
    weights, out = 12 * 512 * 128, 2 * 1536
    assert MERGE.cost_of(problem, {"lse": lse}).bytes == 2 * weights + 24 * 1024 + 8 * 24 * 4 + 4 * out
    assert MERGE.cost(problem).bytes == 2 * weights + 192 * 1024 + 8 * 24 * 4 + 4 * out
    gate = GATE.problem("k3-tp8", 2, "sm_90a")
    assert GATE.cost_of(gate, {"lengths": torch.tensor([9, 0])}).bytes == 2 * weights + (6144 + 1536) * 2 + 2 * out


def dealt(values: Values, shard: int, shards: int) -> Values:
    """The cache that one shard of the context has: rows shard, shard + shards, ... of each request, from block 1 on."""
    page = values["cache"].shape[1]
    requests, wide = values["block_table"].shape
    cache = torch.full((requests * wide + 1, page, ROW), torch.nan).to(values["cache"].dtype)
    table = 1 + torch.arange(requests * wide).view(requests, wide)
    for request, length in enumerate(values["lengths"].tolist()):
        rows = values["cache"][values["block_table"][request].long()].view(-1, ROW)[:length][shard::shards]
        mine = cache[1 + request * wide : 1 + (request + 1) * wide].view(-1, ROW)
        mine[: rows.shape[0]] = rows
    return {**values, "cache": cache, "block_table": table.to(torch.int32), "shard": shard, "shards": shards}


SPLITS = [
    ({}, "borders", 2),
    ({"cache": "e4m3"}, "normal", 3),
    ({"q": "4"}, "borders", 8),
    ({"q": "4", "cache": "e4m3"}, "shortest", 8),
    ({"q": "8"}, "uneven", 5),
]


def merged_and_whole(axes: Mapping[str, str], family: str, shards: int, wrong_mask: bool) -> list[float]:
    """Distance of the merged shards from the context in one piece: stock, then the rounded references."""
    problem = DECODE.problem("nano", 8, "sm_90a", {**axes, "lse": "yes"})
    q = int(problem.axes["q"])
    values = DECODE.inputs(problem, family, 11, "cpu")
    parts = [dealt(values, r, shards) for r in range(shards)]
    if wrong_mask:  # each shard's own length in place of the whole: right for one new token only
        parts = [
            {**p, "lengths": (p["lengths"] - p["shard"] + shards - 1).clamp_min(0) // shards, "shard": 0, "shards": 1}
            for p in parts
        ]
    per_token = values["lengths"].repeat_interleave(q)
    rest = MERGE.inputs(MERGE.problem("nano", 8, "sm_90a"), "normal", 12, "cpu")
    gate, merge = GATE.problem("nano", 8, "sm_90a"), MERGE.problem("nano", 8, "sm_90a")
    distances = []
    for stock in (True, False):

        def run(op: Op, at, v: Values, stock: bool = stock) -> dict[str, torch.Tensor]:  # type: ignore[no-untyped-def]
            return op.stock(at)(v) if stock else op.reference(at, v, True)

        one = run(DECODE, problem, values)["lat"].to(torch.bfloat16)
        want = run(GATE, gate, {"lat": one, "w_uv": rest["w_uv"], "p": rest["p"], "lengths": per_token})["y"]
        found = [run(DECODE, problem, p) for p in parts]
        lat = torch.stack([f["lat"] for f in found]).to(torch.bfloat16)
        lse = torch.stack([f["lse"] for f in found]).float()
        got = run(MERGE, merge, {**rest, "lat": lat, "lse": lse})["y"]
        distances.append(relative_l2(got, want))
    return distances


@pytest.mark.parametrize(("axes", "family", "shards"), SPLITS)
def test_a_split_context_merges_to_the_context_in_one_piece(axes: Mapping[str, str], family: str, shards: int) -> None:
    """Within some three bf16 roundings (2^-9 at most, 1.7e-3 on average) of both sides."""
    assert all(d < 5e-3 for d in merged_and_whole(axes, family, shards, wrong_mask=False))


def test_new_tokens_masked_by_a_shards_own_length_would_not_merge() -> None:
    assert all(d > 0.1 for d in merged_and_whole({"q": "4"}, "shortest", 8, wrong_mask=True))
    assert all(d < 5e-3 for d in merged_and_whole({}, "borders", 2, wrong_mask=True))
