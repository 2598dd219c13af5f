"""dense_mlp: widths, numbers worked out in Python floats, SiTU traps, the element rule, padded rows, costs."""

import math
import struct
from dataclasses import replace

import pytest
import torch

from kgen.contract import Values, selftest
from kgen.contract.tensors import Role
from kgen.gates.rows import rows_of
from kgen.ops import moe_shared, projection
from kgen.ops.dense_mlp import DenseMlp
from kgen.records import Problem

OP = DenseMlp()
CASES = [
    pytest.param(OP.problem("nano", tokens, "sm_90a"), f.name, id=f"{tokens}-{f.name}")
    for tokens in (1, 5)
    for f in OP.families
]


def bf16(value: float) -> float:
    """Round to nearest even on the bits of a float32."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def situ(gate: float, up: float) -> float:
    return 4 * math.tanh(gate / 4) / (1 + math.exp(-gate)) * 25 * math.tanh(up / 25)


def drawn(tokens: int, family: str = "normal", seed: int = 3) -> tuple[Problem, Values, torch.Tensor]:
    problem = OP.problem("nano", tokens, "sm_90a")
    values = OP.inputs(problem, family, seed, "cpu")
    return problem, values, OP.stock(problem)(values)["y"]


def verdict(problem: Problem, values: Values, got: torch.Tensor) -> tuple[str, list[str]]:
    """What the output's rule and the hard rules say of `got`."""
    answers = [OP.reference(problem, values, r)["y"] for r in (True, False)]
    judged = OP.rule(OP.tensors[3]).judge(got, OP.stock(problem)(values)["y"], *answers, 1)
    return judged.complaint, OP.hard_rules(problem, values, {"y": got})


@pytest.mark.parametrize(
    ("dims", "gate_up", "down"),
    [
        ("k3-tp8", (8448, 7168), (7168, 4224)),
        ("k3-tp16", (4224, 7168), (7168, 2112)),  # K of down as in the checkpoint, not padded to 2176
        ("vllm-tp1", (8448, 7168), (7168, 4224)),
        ("nano", (1024, 256), (256, 512)),
    ],
)
def test_weights_have_the_published_shapes(dims: str, gate_up: tuple[int, int], down: tuple[int, int]) -> None:
    size = OP.sizes(OP.problem(dims, 1, "sm_90a"))
    assert OP.tensors[1].sizes(size) == gate_up and OP.tensors[2].sizes(size) == down


def test_the_rounded_reference_written_out_for_one_row() -> None:
    """Two hidden columns are alive, gate, up and h rounded on the way: without any one of these it is 4.59375."""
    problem, values, _ = drawn(1)
    m, w_gate_up, w_down = (torch.zeros_like(values[k]) for k in ("m", "w_gate_up", "w_down"))
    m[0, :3] = torch.tensor([1.5, -0.75, 0.3125])
    live = {3: ((0.7109375, 0.33, 1.1), (1.2, -2.1, 0.6)), 500: ((-1.3, 0.4, 0.9), (30.0, 2.0, 1.0))}
    down = {3: 0.83, 500: -0.39}
    for column, (gate, up) in live.items():
        w_gate_up[column, :3], w_gate_up[512 + column, :3] = torch.tensor(gate), torch.tensor(up)
        w_down[9, column] = down[column]
    row = [1.5, -0.75, 0.3125]
    want, exact = 0.0, 0.0
    for column, pair in live.items():
        g, u = (math.fsum(a * bf16(b) for a, b in zip(row, weights, strict=True)) for weights in pair)
        want += bf16(situ(bf16(g), bf16(u))) * bf16(down[column])
        exact += situ(g, u) * bf16(down[column])
    values = {"m": m, "w_gate_up": w_gate_up, "w_down": w_down}
    rounded, true = (OP.reference(problem, values, r)["y"] for r in (True, False))
    assert float(rounded[0, 9]) == bf16(want) and float(true[0, 9]) == pytest.approx(exact, rel=1e-12)
    assert bf16(want) == 4.5625 and bf16(exact) == 4.59375
    assert int((rounded != 0).sum()) == 1
    assert float(OP.stock(problem)(values)["y"][0, 9]) == bf16(want)


@pytest.mark.parametrize(("problem", "family"), CASES)
def test_stock_passes_every_rule_on_every_family(problem: Problem, family: str) -> None:
    values = OP.inputs(problem, family, 7, "cpu")
    got = OP.stock(problem)(values)["y"]
    assert bool(got.isfinite().all()) and verdict(problem, values, got) == ("", [])


def test_stock_passes_at_a_rank_of_sixteen() -> None:
    problem = OP.problem("k3-tp16", 1, "sm_90a")
    values = OP.inputs(problem, "normal", 7, "cpu")
    assert verdict(problem, values, OP.stock(problem)(values)["y"]) == ("", [])


@pytest.mark.parametrize(("problem", "family"), CASES)
def test_inputs_are_deterministic_and_seeded(problem: Problem, family: str) -> None:
    first, again, other = (OP.inputs(problem, family, seed, "cpu") for seed in (1, 1, 2))
    assert set(first) == {t.name for t in OP.tensors if t.role is not Role.OUT}
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["w_down"], other["w_down"])


def test_references_are_fit_to_judge() -> None:
    assert selftest.complaints(OP) == ()


def test_extremes_reach_both_saturated_ends_of_gate_and_up() -> None:
    _, values, _ = drawn(4, "situ_extremes")
    gate, up = (values["m"].double() @ values["w_gate_up"].double().T).chunk(2, dim=-1)
    for limit, x in ((20, gate), (200, up)):
        assert bool((x > limit).any()) and bool((x < -limit).any())
    _, values, _ = drawn(4, "signed_zero")
    zeros = values["m"][values["m"] == 0]
    assert zeros.numel() > 100 and bool(torch.signbit(zeros).all())


@pytest.mark.parametrize("fault", ["up without its tanh", "silu in place of situ", "up before gate"])
def test_a_wrong_activation_is_refused(fault: str) -> None:
    problem, values, _ = drawn(5, "situ_extremes")
    gate, up = (values["m"].double() @ values["w_gate_up"].double().T).chunk(2, dim=-1)
    h = {
        "up without its tanh": 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * up,
        "silu in place of situ": gate * torch.sigmoid(gate) * 25 * torch.tanh(up / 25),
        "up before gate": 4 * torch.tanh(up / 4) * torch.sigmoid(up) * 25 * torch.tanh(gate / 25),
    }[fault]
    assert all(verdict(problem, values, (h @ values["w_down"].double().T).to(torch.bfloat16)))


@pytest.mark.parametrize("family", [f.name for f in OP.families])
def test_a_kernel_that_keeps_the_hidden_row_in_float32_passes(family: str) -> None:
    problem, values, _ = drawn(5, family)
    gate, up = (values["m"].float() @ values["w_gate_up"].float().T).chunk(2, dim=-1)
    h = moe_shared.situ(gate, up)
    assert verdict(problem, values, (h @ values["w_down"].float().T).to(torch.bfloat16)) == ("", [])


def test_one_wrong_element_is_caught_that_relative_l2_overlooks() -> None:
    problem, values, got = drawn(64)
    bad = got.clone()
    bad[17, 40] += 0.25 * float(got.float().square().mean().sqrt())
    complaint, breaches = verdict(problem, values, bad)
    assert complaint == "" and len(breaches) == 1 and breaches[0].startswith("y[17, 40] is")


def test_a_zero_row_must_give_zeros() -> None:
    problem, values, got = drawn(4, "zero_rows")
    assert bool((got[::2] == 0).all())
    got[2, 5] = 2.0**-100
    complaint, breaches = verdict(problem, values, got)
    assert complaint == "" and "[2, 5]" in breaches[0]


def test_a_padded_call_gives_the_rows_of_the_whole_one() -> None:
    problem, values, _ = drawn(8)
    part = rows_of(OP, problem, values, 5)
    got = OP.stock(problem)(part)["y"]
    assert got.shape == (5, 256)
    assert verdict(replace(problem, tokens=5), part, got) == ("", [])
    assert torch.equal(OP.reference(problem, part, True)["y"], OP.reference(problem, values, True)["y"][:5])


def test_a_chain_keeps_its_magnitude() -> None:
    problem = OP.problem("nano", 2, "sm_90a")
    values = OP.inputs(problem, OP.chain_family, 5, "cpu")
    source, target = OP.chain
    for _ in range(30):
        values[target] = OP.stock(problem)(values)[source]
    assert 1 < float(values[target].float().square().mean().sqrt()) < 1000


@pytest.mark.parametrize(
    ("dims", "megabytes", "gigaflop"),
    [
        ("k3-tp8", (181.69, 181.90, 183.50), (0.182, 1.453, 11.627)),
        ("k3-tp16", (90.86, 91.06, 92.67), (0.091, 0.727, 5.813)),
    ],
)
def test_costs_match_the_published_table(dims: str, megabytes: tuple[float, ...], gigaflop: tuple[float, ...]) -> None:
    for tokens, mb, gf in zip((1, 8, 64), megabytes, gigaflop, strict=True):
        cost = OP.cost(OP.problem(dims, tokens, "sm_90a"))
        assert cost.bytes / 1e6 == pytest.approx(mb, abs=0.0051)
        assert cost.flops / 1e9 == pytest.approx(gf, abs=0.00051)


def test_the_hash_covers_the_shared_maths() -> None:
    assert OP.shared == (moe_shared, projection)
    assert OP.contract_sha256() != moe_shared.MoeShared().contract_sha256()
