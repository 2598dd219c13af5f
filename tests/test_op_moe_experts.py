"""moe_experts: packing, values and roundings in plain Python, both acts, routings and traps, hard rules, costs."""

import math
import struct
from typing import ClassVar

import pytest
import torch

from kgen.contract import Values, relative_l2, selftest
from kgen.contract.quant import mxfp4_unpack
from kgen.contract.tensors import Role
from kgen.gates.rows import rows_of
from kgen.ops import routing
from kgen.ops.moe_experts import MoeExperts
from kgen.ops.mxfp4 import CheckpointExpert, bytes_per_expert, decode, pack, unpack
from kgen.records import Problem


class FewExperts(MoeExperts):
    """The real widths with 16 experts instead of 896, and nano's sizes under the wide rank's rounding rule."""

    dims: ClassVar = {
        **{d: {**s, "experts": 16} for d, s in MoeExperts.dims.items()},
        "k3-tp16": MoeExperts.dims["nano"],
    }


OP, FEW = MoeExperts(), FewExperts()
KINDS = [f.name for f in (*OP.families, *OP.scenarios)]
SEED = 4  # of eight hidden blocks, some have a largest value that saturates without rounding up
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def point(tokens: int = 3, acts: str = "bf16", dims: str = "nano", op: MoeExperts = OP) -> Problem:
    return op.problem(dims, tokens, "sm_90a", {"acts": acts})


def complaint(op: MoeExperts, problem: Problem, values: Values, got: torch.Tensor) -> str:
    stock = op.stock(problem)(values)["part"]
    rounded, true = (op.reference(problem, values, r)["part"] for r in (True, False))
    lines = op.hard_rules(problem, values, {"part": got})
    return op.rule(op.outputs(problem)[0]).judge(got, stock, rounded, true, 1).complaint or "; ".join(lines)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("acts", OP.axes["acts"])
@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_stock_passes_on_every_family_and_routing(tokens: int, acts: str, family: str) -> None:
    problem = point(tokens, acts)
    values = OP.inputs(problem, family, 7, "cpu")
    got = OP.stock(problem)(values)["part"]
    assert bool(got.isfinite().all())
    assert complaint(OP, problem, values, got) == ""


def test_stock_passes_at_real_widths() -> None:
    problem = point(1, "mxfp8", "k3-tp8", FEW)
    values = FEW.inputs(problem, "normal", 7, "cpu")
    got = FEW.stock(problem)(values)["part"]
    assert complaint(FEW, problem, values, got) == ""
    assert 0.1 < float(got.double().square().mean().sqrt()) < 3


def test_the_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


# Plain Python: bytes to numbers, number formats, one token.


def elements(packed: list[int], scales: list[int]) -> list[float]:
    codes = [c for byte in packed for c in (byte % 16, byte // 16)]
    values = [-E2M1[c - 8] if c > 7 else E2M1[c] for c in codes]
    return [v * 2.0 ** (scales[i // 32] - 127) for i, v in enumerate(values)]


def bf16(value: float) -> float:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def e4m3(value: float) -> float:
    if value == 0:
        return 0.0
    step = 2.0 ** (max(math.frexp(value)[1] - 1, -6) - 3)
    return max(-448.0, min(448.0, round(value / step) * step))


def mx(values: list[float], round_up: bool) -> list[float]:
    found = []
    for i in range(0, len(values), 32):
        block = values[i : i + 32]
        largest = max(abs(v) for v in block)
        k = math.frexp(largest)[1] - 1 - 8 if largest else -127
        if round_up and largest > 448 * 2.0**k:
            k += 1
        found += [e4m3(v / 2.0**k) * 2.0**k for v in block]
    return found


def situ(gate: float, up: float) -> float:
    return 4 * math.tanh(gate / 4) / (1 + math.exp(-gate)) * 25 * math.tanh(up / 25)


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def part_in_python(values: Values, acts: str, hidden_up: bool) -> list[float]:
    """Token 0 of the rounded reference."""
    x = values["lat"][0].double().tolist()
    x = mx(x, True) if acts == "mxfp8" else x
    total = [0.0] * len(x)
    for e, weight in zip(values["ids"][0].tolist(), values["w"][0].double().tolist(), strict=True):
        rows13, rows2 = (
            [elements(p, s) for p, s in zip(values[w][e].tolist(), values[n][e].tolist(), strict=True)]
            for w, n in (("w13", "s13"), ("w2", "s2"))
        )
        gu = [dot(x, row) for row in rows13]
        gu = gu if acts == "mxfp8" else [bf16(v) for v in gu]
        h = [situ(g, u) for g, u in zip(gu[:64], gu[64:], strict=True)]
        h = mx(h, hidden_up) if acts == "mxfp8" else [bf16(v) for v in h]
        total = [t + weight * bf16(dot(h, row)) for t, row in zip(total, rows2, strict=True)]
    return [bf16(t) for t in total]


@pytest.mark.parametrize(
    ("dims", "acts", "hidden_up"), [("nano", "bf16", False), ("nano", "mxfp8", False), ("k3-tp16", "mxfp8", True)]
)
def test_the_rounded_reference_agrees_with_plain_python(dims: str, acts: str, hidden_up: bool) -> None:
    problem = point(1, acts, dims, FEW)
    values = FEW.inputs(problem, "normal", SEED, "cpu")
    want = part_in_python(values, acts, hidden_up)
    got = FEW.reference(problem, values, True)["part"]
    assert relative_l2(got[0], torch.tensor(want, dtype=torch.float64)) < 1e-6
    other = part_in_python(values, "bf16" if acts == "mxfp8" else "mxfp8", hidden_up)
    assert relative_l2(got[0], torch.tensor(other, dtype=torch.float64)) > 1e-2
    if acts == "mxfp8":  # the two rules for hidden units can be told apart
        swapped = part_in_python(values, acts, not hidden_up)
        assert relative_l2(got[0], torch.tensor(swapped, dtype=torch.float64)) > 5e-3


def test_decoding_is_exact_for_every_byte_and_every_scale_in_contract() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(1, 256).repeat(253, 1)
    scales = torch.arange(253, dtype=torch.uint8).view(253, 1).repeat(1, 16)
    got = decode(packed, scales)
    assert torch.equal(got.double(), mxfp4_unpack(packed, scales, torch.float64))
    assert got[127, :8].tolist() == [0.0, 0.0, 0.5, 0.0, 1.0, 0.0, 1.5, 0.0]  # bytes 0, 1, 2, 3: low nibble first
    assert got[200].double().tolist() == elements(list(range(256)), [200] * 16)


def checkpoint(count: int, units: int, latent: int, seed: int = 1) -> list[CheckpointExpert]:
    gen = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=gen, dtype=torch.uint8)

    def pair(out: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return draw(0, 256, out, k // 2), draw(118, 124, out, k // 32)

    return [CheckpointExpert(*pair(units, latent), *pair(units, latent), *pair(latent, units)) for _ in range(count)]


@pytest.mark.parametrize(("ranks", "width"), [(1, 384), (2, 192), (2, 256), (4, 96), (12, 64)])
def test_packing_all_ranks_and_unpacking_gives_the_checkpoint_back(ranks: int, width: int) -> None:
    experts = checkpoint(2, 384, 64)
    parts = [pack(experts, rank, ranks, width) for rank in range(ranks)]
    assert parts[0].w13.shape == (2, 2 * width, 32) and parts[0].s2.shape == (2, 64, width // 32)
    for got, want in zip(unpack(parts, 384 // ranks), experts, strict=True):
        assert all(torch.equal(getattr(got, n), getattr(want, n)) for n in ("w1", "s1", "w3", "s3", "w2", "s2"))


def test_padding_is_zeros_after_each_half() -> None:
    expert = checkpoint(1, 384, 64)[0]
    part = pack([expert], 1, 2, 256)
    assert torch.equal(part.w13[0, :192], expert.w1[192:]) and torch.equal(part.s13[0, 256:448], expert.s3[192:])
    assert torch.equal(part.w2[0, :, :96], expert.w2[:, 96:]) and torch.equal(part.s2[0, :, :6], expert.s2[:, 6:])
    for rest in (part.w13[:, 192:256], part.w13[:, 448:], part.s13[:, 192:256], part.w2[..., 96:], part.s2[..., 6:]):
        assert not bool(rest.any())


def test_the_ranks_parts_add_up_to_the_unsharded_expert() -> None:
    experts = checkpoint(16, 128, 128)
    problem = point(1)
    lat = torch.zeros(1, 128)
    lat[0, [3, 40, 100]] = torch.tensor([1.0, -2.0, 0.5])
    ids, w = torch.tensor([[5, 0, 15, 9]], dtype=torch.int32), torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    total = torch.zeros(128, dtype=torch.float64)
    for rank in range(2):
        packed = pack(experts, rank, 2, 64)
        values = {"lat": lat.bfloat16(), "ids": ids, "w": w.bfloat16(), **vars(packed)}
        total += OP.reference(problem, values, False)["part"][0]
    want = [0.0] * 128
    for e, weight in zip(ids[0].tolist(), w[0].tolist(), strict=True):
        made = experts[e]
        rows = {
            n: [elements(p, s) for p, s in zip(c.tolist(), t.tolist(), strict=True)]
            for n, c, t in (("w1", made.w1, made.s1), ("w3", made.w3, made.s3), ("w2", made.w2, made.s2))
        }
        x = lat[0].tolist()
        h = [situ(dot(x, g), dot(x, u)) for g, u in zip(rows["w1"], rows["w3"], strict=True)]
        want = [t + weight * dot(h, row) for t, row in zip(want, rows["w2"], strict=True)]
    assert relative_l2(total, torch.tensor(want, dtype=torch.float64)) < 1e-12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w3": torch.zeros(384, 31, dtype=torch.uint8)}, r"expert 1: w3 must be uint8 \[384, 32\]"),
        ({"w2": torch.zeros(64, 192)}, "got float32"),
        ({"s2": torch.full((64, 12), 255, dtype=torch.uint8)}, "s2 holds scale byte 255"),
    ],
)
def test_a_wrong_expert_is_refused_by_name(change: dict[str, torch.Tensor], words: str) -> None:
    good, bad = checkpoint(2, 384, 64)
    with pytest.raises(ValueError, match=words):
        pack([good, CheckpointExpert(**{**vars(bad), **change})], 0, 2, 192)


@pytest.mark.parametrize(("rank", "ranks", "width"), [(0, 5, 96), (0, 24, 32), (2, 2, 192), (0, 2, 160), (0, 2, 200)])
def test_slices_that_do_not_fit_are_refused(rank: int, ranks: int, width: int) -> None:
    with pytest.raises(ValueError, match="do not split"):
        pack(checkpoint(1, 384, 64), rank, ranks, width)


# Routings.


@pytest.mark.parametrize("kind", routing.KINDS)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 16, 4), (7, 16, 4), (64, 896, 16)])
def test_routings_are_valid_and_drawn_from_the_seed(kind: str, tokens: int, experts: int, top_k: int) -> None:
    made = [routing.route(kind, tokens, experts, top_k, torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    ids = made[0]
    assert ids.dtype == torch.int32 and ids.shape == (tokens, top_k)
    assert int(ids.min()) >= 0 and int(ids.max()) < experts
    assert all(len(set(row)) == top_k for row in ids.tolist())
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_routings_are_what_they_are_called() -> None:
    ids = {k: routing.route(k, 64, 896, 16, torch.Generator().manual_seed(3)) for k in routing.KINDS}
    used = {k: torch.bincount(t.flatten().long(), minlength=896) for k, t in ids.items()}
    distinct = {k: int((n > 0).sum()) for k, n in used.items()}
    assert distinct["same"] == 16 and distinct["distinct"] == 896
    assert abs(distinct["uniform"] - 613.2) < 40  # 896 (1 - (1 - 16/896)^64)
    assert int(used["ragged"].max()) == 63 and int(used["uniform"].max()) < 10
    assert (
        int((used["hot_half"] >= 20).sum()) == 16
        and int(used["hot_half"].sort(descending=True).values[:16].sum()) >= 512
    )
    assert 12 <= int(used["trace"].max()) <= 40 and distinct["trace"] < distinct["uniform"]
    common = [len(set(ids["shared"][t].tolist()) & set(ids["shared"][t + 1].tolist())) for t in range(0, 64, 4)]
    assert min(common) >= 12
    assert routing.expected_distinct(8, 896, 16) == pytest.approx(120.3, abs=0.05)


# Families, hard rules, rows.


def gate_up(values: Values, tokens: int) -> torch.Tensor:
    e = values["ids"][:tokens, 0].long()
    w13 = mxfp4_unpack(values["w13"][e], values["s13"][e], torch.float64)
    return (w13 @ values["lat"][:tokens].double().unsqueeze(2)).squeeze(2)


def test_each_trap_family_holds_its_trap() -> None:
    problem = point(16)
    made = {f: OP.inputs(problem, f, 5, "cpu") for f in KINDS}
    gate, up = gate_up(made["situ_traps"], 16).chunk(2, dim=1)
    for sign in (1, -1):
        assert bool((sign * gate > 20).any()) and bool((sign * up > 200).any())
    for name in ("s13", "s2"):
        scales = made["e8m0"][name]
        assert int(scales.max()) == 252 and int(scales.min()) == 0
        assert bool(((scales > 0) & (scales < 127)).any()) and bool(((scales > 127) & (scales < 252)).any())
    assert int(made["e8m0"]["s13"].unique().numel()) > 10
    lat = made["e8m0"]["lat"].double().abs()
    assert float(lat.max()) > 2.0**95 and 0 < float(lat[lat > 0].min()) < 2.0**-95
    idle = made["idle_slots"]
    assert idle["ids"][-1].tolist() == [-1] * 4 and bool(idle["lat"][-1].isnan().all())
    assert bool((idle["ids"][:-1] == -1).any()) and bool((idle["ids"][:-1] >= 0).any())
    assert not bool(made["zero_weights"]["w"][-1].any()) and bool((made["zero_weights"]["w"] > 0).any())
    assert len(set(made["same_experts"]["ids"].flatten().tolist())) == 4
    assert not any(int(made[f][n].max()) > 252 for f in KINDS for n in ("s13", "s2"))


def test_hidden_units_that_a_wide_rank_only_stores_are_zero_and_the_rest_is_not() -> None:
    problem = point(1, dims="k3-tp16", op=_Tp16())
    values = _Tp16().inputs(problem, "situ_traps", 1, "cpu")
    w13, w2 = values["w13"], values["w2"]
    for rest in (w13[:, 192:256], w13[:, 448:], values["s13"][:, 448:], w2[..., 96:], values["s2"][..., 6:]):
        assert not bool(rest.any())
    for used in (w13[:, 191], w13[:, 256], w2[..., 95]):
        assert bool(used.any())


class _Tp16(MoeExperts):
    dims: ClassVar = {**MoeExperts.dims, "k3-tp16": {**MoeExperts.dims["k3-tp16"], "experts": 16}}


@pytest.mark.parametrize(("family", "token"), [("idle_slots", 15), ("zero_rows", 0)])
def test_tokens_that_must_be_zero_are_held_to_it(family: str, token: int) -> None:
    problem = point(16)
    values = OP.inputs(problem, family, 5, "cpu")
    part = OP.stock(problem)(values)["part"]
    assert OP.hard_rules(problem, values, {"part": part}) == []
    part[token, 7] = 2.0**-30
    assert len(OP.hard_rules(problem, values, {"part": part})) == 1


@pytest.mark.parametrize("acts", OP.axes["acts"])
def test_an_ignored_expert_or_slot_order_of_weights_is_refused(acts: str) -> None:
    problem = point(8, acts)
    values = OP.inputs(problem, "normal", 5, "cpu")
    fewer = {**values, "w": values["w"].clone()}
    fewer["w"][3, 0] = 0.0
    for wrong in (fewer, {**values, "w": values["w"].roll(1, 1)}, {**values, "ids": values["ids"].roll(1, 1)}):
        assert complaint(OP, problem, values, OP.stock(problem)(wrong)["part"])


@pytest.mark.parametrize("acts", OP.axes["acts"])
def test_gathered_slots_and_whole_experts_give_the_same_rows(acts: str) -> None:
    """4 tokens of 4 slots are gathered, 5 tokens go through every expert."""
    values = OP.inputs(point(5, acts), "normal", 5, "cpu")
    whole = OP.stock(point(5, acts))(values)["part"]
    few = OP.stock(point(4, acts))(rows_of(OP, point(5, acts), values, 4))["part"]
    assert relative_l2(few, whole[:4]) < 2e-3


@pytest.mark.parametrize("acts", OP.axes["acts"])
def test_padding_rows_are_zero_and_do_not_touch_the_others(acts: str) -> None:
    problem = point(16, acts)
    values = OP.inputs(problem, "normal", 5, "cpu")
    want = OP.reference(problem, rows_of(OP, problem, values, 12), True)["part"]
    padding = next(t.padding for t in OP.tensors if t.name == "ids")
    values["ids"][12:], values["lat"][12:], values["w"][12:] = padding, math.nan, math.nan
    for run in (OP.stock(problem), lambda v: OP.reference(problem, v, True), lambda v: OP.reference(problem, v, False)):
        got = run(values)["part"]
        assert not bool(got[12:].any()) and relative_l2(got[:12], want) < 0.1
    assert torch.equal(OP.reference(problem, values, True)["part"][:12], want)


def test_inputs_are_deterministic_and_complete() -> None:
    problem = point()
    for family in KINDS:
        first, again, other = (OP.inputs(problem, family, s, "cpu") for s in (1, 1, 2))
        for spec in (t for t in OP.present(problem) if t.role is not Role.OUT):
            assert first[spec.name].shape == spec.sizes(OP.sizes(problem))
            assert torch.equal(first[spec.name].view(torch.uint8), again[spec.name].view(torch.uint8))
            assert not torch.equal(first[spec.name], other[spec.name])


# Costs.


@pytest.mark.parametrize(
    ("dims", "tokens", "megabytes", "gigaflop"),
    [
        ("k3-tp8", 1, 35.11, 0.132),
        ("k3-tp8", 8, 263.94, 1.057),
        ("k3-tp8", 64, 1345.91, 8.456),
        ("k3-tp16", 1, 23.41, 0.088),
        ("k3-tp16", 8, 176.00, 0.705),
        ("k3-tp16", 64, 897.58, 5.637),
    ],
)
def test_costs_match_the_published_table(dims: str, tokens: int, megabytes: float, gigaflop: float) -> None:
    cost = OP.cost(point(tokens, dims=dims))
    assert cost.bytes / 1e6 == pytest.approx(megabytes, abs=0.02)
    assert cost.flops / 1e9 == pytest.approx(gigaflop, abs=6e-4)


def test_costs_follow_the_experts_that_are_really_reached() -> None:
    assert (bytes_per_expert(3584, 384), bytes_per_expert(3584, 256)) == (2_193_408, 1_462_272)
    problem = point(2, dims="k3-tp8")
    rows = 2 * (4 * 3584 + 16 * 6)
    ids = torch.arange(16, dtype=torch.int32).repeat(2, 1)
    assert OP.cost_of(problem, {"ids": ids}).bytes == 16 * 2_193_408 + rows
    ids[1] += 8
    assert OP.cost_of(problem, {"ids": ids}).bytes == 24 * 2_193_408 + rows
    ids[1] = -1
    cost = OP.cost_of(problem, {"ids": ids})
    assert (cost.bytes, cost.flops) == (16 * 2_193_408 + rows, 2 * 16 * 3 * 3584 * 384)
