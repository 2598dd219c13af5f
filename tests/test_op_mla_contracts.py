"""What all five MLA contracts promise: stock passes, inputs repeat, rows stand alone, nothing syncs, hashes hold."""

from dataclasses import replace

import pytest
import torch

from kgen.contract import Op, Role, Values, selftest
from kgen.gates.rows import rows_of
from kgen.ops.mla_dcp_merge import MlaDcpMerge
from kgen.ops.mla_decode import MlaDecode
from kgen.ops.mla_kv_append import MlaKvAppend
from kgen.ops.mla_out_gate import MlaOutGate
from kgen.ops.mla_q import MlaQ
from kgen.records import Problem

OPS: tuple[Op, ...] = (MlaQ(), MlaKvAppend(), MlaDecode(), MlaOutGate(), MlaDcpMerge())
NAMED = [pytest.param(op, id=op.name) for op in OPS]


def problems(op: Op, dims: str = "nano") -> list[Problem]:
    """Points that have every axis value between them, at few tokens."""
    chosen: list[dict[str, str]] = [{}]
    if "q" in op.axes:
        chosen += [{"cache": "e4m3", "q": "4", "lse": "yes"}, {"cache": "bf16", "q": "8", "lse": "yes"}]
    elif "cache" in op.axes:
        chosen += [{"cache": "e4m3"}]
    return [op.problem(dims, 8 if axes.get("q") == "8" else 4, "sm_90a", axes) for axes in chosen]


def test_the_points_tried_have_every_axis_value() -> None:
    for op in OPS:
        for name, values in op.axes.items():
            assert {p.axes[name] for p in problems(op)} == set(values)


POINTS = [pytest.param(op, problem, id=problem.key) for op in OPS for problem in problems(op)]
CASES = [
    pytest.param(op, problem, family.name, id=f"{problem.key}-{family.name}")
    for op in OPS
    for problem in problems(op)
    for family in op.families
]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def tensors(values: Values) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def complaints(op: Op, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
    """What the rules and the hard rules say of an answer, the stock op's being the yardstick."""
    stock = op.stock(problem)(values)
    rounded, true = (op.reference(problem, values, r) for r in (True, False))
    found = [
        op.rule(s).judge(got[s.name], stock[s.name], rounded[s.name], true[s.name], 1).complaint
        for s in op.outputs(problem)
    ]
    return [line for line in found if line] + op.hard_rules(problem, values, got)


@pytest.mark.parametrize("op", NAMED)
def test_the_references_are_fit_to_judge(op: Op) -> None:
    assert selftest.complaints(op) == ()


@pytest.mark.parametrize(("op", "problem", "family"), CASES)
def test_stock_and_the_rounded_reference_pass_on_every_family(op: Op, problem: Problem, family: str) -> None:
    values = op.inputs(problem, family, 5, "cpu")
    assert complaints(op, problem, values, op.stock(problem)(values)) == []
    rounded = op.reference(problem, values, True)
    kinds = {name: t.dtype for name, t in op.stock(problem)(values).items()}
    assert complaints(op, problem, values, {n: t.to(kinds[n]) for n, t in rounded.items()}) == []


@pytest.mark.parametrize(("op", "problem"), POINTS)
def test_stock_passes_at_full_width(op: Op, problem: Problem) -> None:
    full = op.problem("k3-tp16", int(problem.axes.get("q", "1")), "sm_90a", problem.axes)
    family = op.families[0].name
    values = op.inputs(full, family, 5, "cpu")
    assert complaints(op, full, values, op.stock(full)(values)) == []


@pytest.mark.parametrize(("op", "problem"), POINTS)
def test_inputs_repeat_differ_by_seed_and_have_the_stated_shapes(op: Op, problem: Problem) -> None:
    problem = replace(problem, tokens=int(problem.axes.get("q", "2")))
    sizes = op.sizes(problem)
    for family in op.families:
        first, again, other = (op.inputs(problem, family.name, seed, "cpu") for seed in (1, 1, 2))
        assert all(torch.equal(bits(t), bits(tensors(again)[n])) for n, t in tensors(first).items())
        assert any(not torch.equal(bits(t), bits(tensors(other)[n])) for n, t in tensors(first).items())
        specs = [t for t in op.present(problem) if t.role is not Role.OUT]
        assert set(first) == {t.name for t in specs} | {s.name for s in op.scalars}
        for spec in specs:
            assert tuple(tensors(first)[spec.name].shape) == spec.sizes(sizes)


@pytest.mark.parametrize(("op", "problem"), POINTS)
def test_stock_never_asks_the_device_for_a_value(op: Op, problem: Problem) -> None:
    """Tensors on the meta device have no values: a host sync or a data-dependent shape raises there."""
    values = op.inputs(problem, op.families[0].name, 5, "cpu")
    meta: Values = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    shapes = {n: t.shape for n, t in op.stock(problem)(values).items()}
    assert {n: t.shape for n, t in op.stock(problem)(meta).items()} == shapes


@pytest.mark.parametrize(("op", "problem"), POINTS)
def test_rows_do_not_depend_on_the_padding_behind_them(op: Op, problem: Problem) -> None:
    problem = replace(problem, tokens=16)
    count = 8 if "q" in problem.axes else 5
    values = op.inputs(problem, op.families[0].name, 5, "cpu")
    cut = rows_of(op, problem, values, count)
    for spec in op.present(problem):
        if spec.token_dim is None or spec.role is Role.OUT:
            continue
        value, rows = tensors(values)[spec.name], cut[spec.name].shape[spec.token_dim]
        tail = value.narrow(spec.token_dim, rows, value.shape[spec.token_dim] - rows)
        if value.is_floating_point():
            tail.copy_(torch.full(tail.shape, torch.nan))
        else:
            assert spec.padding is not None
            tail.fill_(spec.padding)
    whole, alone = (op.reference(problem, v, True) for v in (values, cut))
    stock_whole, stock_alone = (op.stock(problem)(v) for v in (values, cut))
    for name, want in alone.items():
        got = rows_of(op, problem, whole, count)[name]
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-12)
        assert bool(torch.isfinite(want).all())
        served = rows_of(op, problem, stock_whole, count)[name].double()
        torch.testing.assert_close(served, stock_alone[name].double(), rtol=2**-3, atol=1e-3)


@pytest.mark.parametrize("op", NAMED)
def test_every_argument_of_a_compiled_part_traces(op: Op) -> None:
    problem = problems(op)[0]
    values = op.inputs(problem, op.families[0].name, 5, "cpu")
    calls = 0

    def counting(function, dynamic):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        assert dynamic is False
        return function

    got, plain = op.stock(problem, counting)(values), op.stock(problem)(values)
    assert calls > 0
    assert all(torch.equal(bits(got[n]), bits(t)) for n, t in plain.items())


@pytest.mark.parametrize(
    ("dims", "tokens", "q_kv", "decode_4k", "decode_128k", "gate"),
    [
        ("k3-tp8", 1, (8.66, 0.009), (2.38, 0.107), (75.52, 3.423), (1.59, 0.002)),
        ("k3-tp8", 8, (8.74, 0.069), (19.03, 0.856), (604.13, 27.380), (1.72, 0.013)),
        ("k3-tp8", 64, (9.40, 0.554), (152.22, 6.845), (4833.07, 219.043), (2.75, 0.101)),
        ("k3-tp16", 1, (4.33, 0.004), (2.37, 0.053), (75.51, 1.711), (0.80, 0.001)),
        ("k3-tp16", 8, (4.39, 0.035), (18.95, 0.428), (604.06, 13.690), (0.86, 0.006)),
        ("k3-tp16", 64, (4.85, 0.277), (151.61, 3.423), (4832.45, 109.522), (1.38, 0.050)),
    ],
)
def test_costs_are_those_of_the_published_table(
    dims: str,
    tokens: int,
    q_kv: tuple[float, float],
    decode_4k: tuple[float, float],
    decode_128k: tuple[float, float],
    gate: tuple[float, float],
) -> None:
    """MB and GFLOP of an e4m3 cache."""
    e4m3 = {"cache": "e4m3"}
    query, append, decode, out_gate = (OPS[i] for i in range(4))
    both = [op.cost(op.problem(dims, tokens, "", e4m3)) for op in (query, append)]
    found = [(sum(c.bytes for c in both), both[0].flops)]
    for length in (4096, 131072):
        lengths: Values = {"lengths": torch.full((tokens,), length), "shard": 0, "shards": 1}
        cost = decode.cost_of(decode.problem(dims, tokens, "", e4m3), lengths)
        found.append((cost.bytes, cost.flops))
    cost = out_gate.cost(out_gate.problem(dims, tokens, ""))
    found.append((cost.bytes, cost.flops))
    for (moved, flops), (megabytes, gigaflops) in zip(found, (q_kv, decode_4k, decode_128k, gate), strict=True):
        assert moved / 1e6 == pytest.approx(megabytes, rel=0.002, abs=0.006)
        assert flops / 1e9 == pytest.approx(gigaflops, rel=0.002, abs=0.0006)


@pytest.mark.parametrize(("op", "problem"), POINTS)
def test_the_cost_at_hand_is_near_the_typical_cost(op: Op, problem: Problem) -> None:
    problem = replace(problem, tokens=64)
    size = op.sizes(problem)
    values = {"lengths": torch.full((size.get("requests", 64),), 512), "shard": 0, "shards": 1}
    values |= {"slots": torch.arange(64), "lse": torch.zeros(size.get("ranks", 1), 64, size["heads"])}
    assert op.cost_of(problem, values) == op.cost(problem)
