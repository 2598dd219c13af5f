"""The four plain projections: widths, numbers, input traps, the element rule, padded rows, costs."""

import math
import struct
from dataclasses import replace

import pytest
import torch

from kgen.contract import Op, Values, selftest
from kgen.contract.tensors import Role
from kgen.gates.rows import rows_of
from kgen.ops import projection
from kgen.ops.kda_in_proj import KdaInProj
from kgen.ops.mla_in_proj import MlaInProj
from kgen.ops.moe_latent_down import MoeLatentDown
from kgen.ops.oproj_partial import OprojPartial
from kgen.records import Problem

KDA, MLA, OPROJ, LATENT = KdaInProj(), MlaInProj(), OprojPartial(), MoeLatentDown()
OPS = (KDA, MLA, OPROJ, LATENT)
SMALL = [pytest.param(op, op.problem("nano", t, "sm_90a"), id=f"{op.name}-{t}") for op in OPS for t in (1, 5)]
WIDE = [pytest.param(op, op.problem("k3-tp16", 2, "sm_90a"), id=f"{op.name}-wide") for op in (OPROJ, LATENT)]
CASES = [
    pytest.param(*case.values, f.name, id=f"{case.id}-{f.name}")
    for case in SMALL + WIDE
    for f in case.values[0].families
]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def verdict(op: Op, problem: Problem, values: Values, got: torch.Tensor) -> tuple[str, list[str]]:
    """What the output's rule and the hard rules say of `got` as the op's only output."""
    spec = op.tensors[2]
    stock = op.stock(problem)(values)[spec.name]
    answers = [op.reference(problem, values, r)[spec.name] for r in (True, False)]
    judged = op.rule(spec).judge(got, stock, *answers, 1)
    return judged.complaint, op.hard_rules(problem, values, {spec.name: got})


def drawn(op: Op, tokens: int, family: str = "normal", seed: int = 3) -> tuple[Problem, Values, torch.Tensor]:
    """A nano point, its inputs and what stock makes of them."""
    problem = op.problem("nano", tokens, "sm_90a")
    values = op.inputs(problem, family, seed, "cpu")
    return problem, values, op.stock(problem)(values)[op.tensors[2].name]


def bf16(value: float) -> float:
    """Round to nearest even on the bits of a float32."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@pytest.mark.parametrize(
    ("op", "dims", "shape"),
    [
        (KDA, "k3-tp8", (6288, 7168)),
        (KDA, "k3-tp16", (3216, 7168)),
        (KDA, "nano", (1168, 256)),
        (KDA, "vllm-tp1", (6288, 7168)),
        (MLA, "k3-tp8", (3648, 7168)),
        (MLA, "k3-tp16", (2880, 7168)),
        (MLA, "nano", (960, 256)),
        (OPROJ, "k3-tp8", (7168, 1536)),
        (OPROJ, "k3-tp16", (7168, 768)),
        (OPROJ, "nano", (256, 256)),
        (LATENT, "k3-tp8", (448, 7168)),
        (LATENT, "k3-tp16", (224, 7168)),
        (LATENT, "vllm-tp1", (3584, 7168)),
        (LATENT, "nano", (128, 256)),
    ],
)
def test_weights_have_the_published_shapes(op: Op, dims: str, shape: tuple[int, int]) -> None:
    assert op.tensors[1].sizes(op.sizes(op.problem(dims, 1, "sm_90a"))) == shape


@pytest.mark.parametrize(("op", "problem"), SMALL)
def test_elements_are_the_sums_of_products_written_out(op: Op, problem: Problem) -> None:
    values = op.inputs(problem, "normal", 11, "cpu")
    x, w, out = (t.name for t in op.tensors)
    true, rounded = (op.reference(problem, values, r)[out] for r in (False, True))
    for row, column in ((0, 0), (problem.tokens - 1, true.shape[1] - 1), (0, true.shape[1] // 2)):
        pairs = zip(values[x][row].tolist(), values[w][column].tolist(), strict=True)
        want = math.fsum(a * b for a, b in pairs)
        assert float(true[row, column]) == pytest.approx(want, rel=1e-12)
        assert float(rounded[row, column]) == bf16(want)


@each_op
def test_a_one_hot_row_picks_a_weight_column(op: Op) -> None:
    problem, values, _ = drawn(op, 1)
    x, w, out = (t.name for t in op.tensors)
    values[x] = torch.zeros_like(values[x])
    values[x][0, 7] = 2.0
    assert torch.equal(op.reference(problem, values, True)[out][0], 2 * values[w][:, 7].double())
    assert torch.equal(op.stock(problem)(values)[out][0], 2 * values[w][:, 7])


@pytest.mark.parametrize(("op", "problem", "family"), CASES)
def test_stock_passes_every_rule_on_every_family(op: Op, problem: Problem, family: str) -> None:
    values = op.inputs(problem, family, 7, "cpu")
    got = op.stock(problem)(values)[op.tensors[2].name]
    assert got.dtype == torch.bfloat16 and bool(got.isfinite().all())
    assert verdict(op, problem, values, got) == ("", [])


@each_op
def test_float32_sums_in_another_order_pass(op: Op) -> None:
    for family in op.families:
        problem, values, _ = drawn(op, 5, family.name)
        x, w = (values[t.name].float() for t in op.tensors[:2])
        parts = [a @ b.T for a, b in zip(x.split(32, 1), w.split(32, 1), strict=True)]
        assert verdict(op, problem, values, sum(reversed(parts)).to(torch.bfloat16)) == ("", []), family.name


@each_op
def test_references_are_fit_to_judge(op: Op) -> None:
    assert selftest.complaints(op) == ()


@pytest.mark.parametrize(("op", "problem", "family"), [c for c in CASES if "wide" not in str(c.id)])
def test_inputs_are_deterministic_and_seeded(op: Op, problem: Problem, family: str) -> None:
    first, again, other = (op.inputs(problem, family, seed, "cpu") for seed in (1, 1, 2))
    assert set(first) == {t.name for t in op.tensors if t.role is not Role.OUT}
    weight = op.tensors[1].name  # a single zero row is the same for every seed
    assert all(torch.equal(first[n], again[n]) for n in first) and not torch.equal(first[weight], other[weight])


@each_op
def test_families_hold_the_traps_they_name(op: Op) -> None:
    x, w, _ = (t.name for t in op.tensors)
    rows = {f.name: drawn(op, 4, f.name)[1][x].double() for f in op.families}
    least = 2.0**-126
    small = (rows["denormal_channels"].abs() < least) & (rows["denormal_channels"] != 0)
    assert 0.4 < float(small.double().mean()) < 0.6
    assert float(rows["huge"].abs().median()) > 65504
    assert float(rows["tiny"].abs().max()) < 2.0**-30
    assert bool((rows["zero_rows"][::2] == 0).all()) and bool((rows["zero_rows"][1::2] != 0).any())
    zeros = rows["signed_zero"] == 0
    assert bool(zeros.any()) and bool(torch.signbit(rows["signed_zero"][zeros]).all())
    assert float(rows["outlier"].abs().max()) > 8  # unit normal values end at 5
    values = drawn(op, 4, "cancelling")[1]
    half = values[x].shape[1] // 2
    first = values[x][:, :half].double() @ values[w][:, :half].double().T
    whole = values[x].double() @ values[w].double().T
    assert float(whole.square().mean().sqrt()) < 0.1 * float(first.square().mean().sqrt())


@each_op
def test_partial_sums_kept_in_bf16_are_refused(op: Op) -> None:
    problem, values, _ = drawn(op, 5, "cancelling")
    x, w = (values[t.name].float() for t in op.tensors[:2])
    half = x.shape[1] // 2
    parts = [(a @ b.T).to(torch.bfloat16) for a, b in zip(x.split(half, 1), w.split(half, 1), strict=True)]
    complaint, breaches = verdict(op, problem, values, parts[0] + parts[1])
    assert complaint and breaches


@each_op
def test_a_detour_through_f16_is_refused(op: Op) -> None:
    problem, values, _ = drawn(op, 5, "huge")
    x, w = (values[t.name] for t in op.tensors[:2])
    got = (x.half().float() @ w.float().T).to(torch.bfloat16)
    assert all(verdict(op, problem, values, got))


@each_op
def test_one_wrong_element_is_caught_that_relative_l2_overlooks(op: Op) -> None:
    problem, values, got = drawn(op, 64)
    bad = got.clone()
    at = (17, 40)
    bad[at] += 0.1 * float(got.float().square().mean().sqrt())
    complaint, breaches = verdict(op, problem, values, bad)
    assert complaint == "" and len(breaches) == 1
    assert f"{op.tensors[2].name}[17, 40] is" in breaches[0] and "; 1 of" in breaches[0]
    assert "\n" not in breaches[0]


@each_op
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_element_that_is_not_finite_breaks_the_hard_rule(op: Op, value: float) -> None:
    problem, values, got = drawn(op, 2)
    got[1, 3] = value
    assert len(op.hard_rules(problem, values, {op.tensors[2].name: got})) == 1


@each_op
def test_a_zero_row_must_give_zeros(op: Op) -> None:
    problem, values, got = drawn(op, 4, "zero_rows")
    assert bool((got[::2] == 0).all())
    got[2, 5] = 2.0**-100
    complaint, breaches = verdict(op, problem, values, got)
    assert complaint == "" and "[2, 5]" in breaches[0]


def test_one_bf16_step_is_allowed_and_two_are_not() -> None:
    problem, values, _ = drawn(OPROJ, 1)
    values["y"], values["w_o"] = torch.zeros_like(values["y"]), torch.zeros_like(values["w_o"])
    values["y"][0, 0], values["w_o"][:, 0] = 1.0, 1.5  # every output is 1.5: so is the rms, and a step is 2^-7
    got = torch.full_like(OPROJ.stock(problem)(values)["part"], 1.5)
    for steps, fine in ((0, True), (1, True), (-1, True), (2, False), (-2, False)):
        got[0, 9] = 1.5 + steps / 128
        assert (OPROJ.hard_rules(problem, values, {"part": got}) == []) is fine


def test_the_allowance_in_numbers() -> None:
    want = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)  # rms 2.89, a step of 2^-6; at 4 it is 2^-5
    sizes = torch.tensor([[8.0, 0.0, 2.0]], dtype=torch.float64)
    got = projection.element_allowance(want, sizes, 1024)
    assert got[0].tolist() == [2**-6 + 1024 * 8 / 2**24, 0.0, 2**-6 + 1024 * 2 / 2**24]


@pytest.mark.parametrize(
    ("value", "step"),
    [(1.0, 2**-7), (-1.99, 2**-7), (2.0, 2**-6), (255.0, 1.0), (0.0, 2**-133), (2**-130, 2**-133), (2**-126, 2**-133)],
)
def test_bf16_steps_by_hand(value: float, step: float) -> None:
    assert float(projection.ulp(torch.tensor([value], dtype=torch.float64))) == step


def test_kda_padding_columns_are_part_of_the_product() -> None:
    used = 4 * 256 + 128 + 2
    problem, values, got = drawn(KDA, 3)
    assert got.shape[1] - used == 14 and bool((got[:, used:] != 0).all())
    got[:, used:] = 0
    assert KDA.hard_rules(problem, values, {"p": got})
    problem, values, got = drawn(KDA, 3, "zero_padding")
    assert bool((values["w_in"][used:] == 0).all()) and bool((values["w_in"][used - 1] != 0).any())
    assert bool((got[:, used:] == 0).all())
    got[0, -1] = 1e-6
    assert KDA.hard_rules(problem, values, {"p": got})


@each_op
def test_a_padded_call_gives_the_rows_of_the_whole_one(op: Op) -> None:
    problem, values, whole = drawn(op, 8)
    part = rows_of(op, problem, values, 5)
    name = op.tensors[2].name
    got = op.stock(problem)(part)[name]
    assert got.shape == (5, whole.shape[1])
    assert verdict(op, replace(problem, tokens=5), part, got) == ("", [])
    assert torch.equal(op.reference(problem, part, True)[name], op.reference(problem, values, True)[name][:5])


@pytest.mark.parametrize(
    ("op", "dims", "megabytes", "gigaflop"),
    [
        (KDA, "k3-tp8", (90.17, 90.36, 91.87), (0.090, 0.721, 5.769)),
        (KDA, "k3-tp16", (46.13, 46.27, 47.43), (0.046, 0.369, 2.951)),
        (MLA, "k3-tp8", (52.32, 52.47, 53.68), (0.052, 0.418, 3.347)),
        (MLA, "k3-tp16", (41.31, 41.45, 42.57), (0.041, 0.330, 2.642)),
        (OPROJ, "k3-tp8", (22.04, 22.16, 23.13), (0.022, 0.176, 1.409)),
        (OPROJ, "k3-tp16", (11.03, 11.14, 12.03), (0.011, 0.088, 0.705)),
        (LATENT, "k3-tp8", (6.44, 6.54, 7.40), (0.006, 0.051, 0.411)),
        (LATENT, "k3-tp16", (3.23, 3.33, 4.16), (0.003, 0.026, 0.206)),
    ],
)
def test_costs_match_the_published_table(
    op: Op, dims: str, megabytes: tuple[float, ...], gigaflop: tuple[float, ...]
) -> None:
    for tokens, mb, gf in zip((1, 8, 64), megabytes, gigaflop, strict=True):
        cost = op.cost(op.problem(dims, tokens, "sm_90a"))
        assert cost.bytes / 1e6 == pytest.approx(mb, abs=0.0051)
        assert cost.flops / 1e9 == pytest.approx(gf, abs=0.00051)


def test_hashes_hold_the_shared_module() -> None:
    assert all(projection in op.shared for op in OPS)


def test_large_weights_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, values, _ = drawn(KDA, 3)
    whole = KDA.reference(problem, values, False)["p"]
    monkeypatch.setattr(projection, "ROWS_AT_ONCE", 100)  # 1168 rows: the last piece is shorter
    assert torch.allclose(KDA.reference(problem, values, False)["p"], whole, rtol=1e-12, atol=1e-14)
