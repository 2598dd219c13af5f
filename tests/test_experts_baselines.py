"""What the routed experts are timed against beside their stock: right on every family, made once, fit where said."""

import math
from pathlib import Path

import pytest
import torch

from kgen.contract import DTYPES
from kgen.contract.quant import mxfp4_unpack
from kgen.contract.rules import RelL2
from kgen.gates import perf, timing
from kgen.gates.runner import perf as job_side
from kgen.gates.runner.contestants import Functional
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.out import Out
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH
from kgen.ops import REGISTRY, baselines, experts_baselines
from kgen.ops.mxfp4 import bytes_per_expert
from kgen.ops.routing import expected_distinct
from kgen.records import Problem

OP = REGISTRY.get("moe_experts")
NAMES = tuple(experts_baselines.EXPERTS)


def point(tokens: int = 16, acts: str = "bf16", dims: str = "nano") -> Problem:
    return OP.problem(dims, tokens, "sm_90a", {"acts": acts})


@pytest.mark.parametrize("family", [f.name for f in OP.families])
@pytest.mark.parametrize("name", NAMES)
def test_each_is_within_the_ops_rule_on_every_family(name: str, family: str) -> None:
    problem = point()
    values = OP.inputs(problem, family, 11, "cpu")
    rounded, true = (OP.reference(problem, values, r)["part"] for r in (True, False))
    stock = OP.stock(problem)(values)["part"]
    each = experts_baselines.EXPERTS[name]
    beside = each.prepare(values) if each.prepare is not None else {}
    got = each.make(problem, None)({**values, **beside})["part"]
    assert got.dtype == torch.bfloat16 and got.shape == stock.shape
    assert RelL2(OP.floor).judge(got, stock, rounded, true, 1).complaint == ""
    assert not OP.hard_rules(problem, values, {"part": got})


@pytest.mark.parametrize("name", NAMES)
def test_each_reads_all_that_it_is_given(name: str) -> None:
    """Another latent, expert, weight or code is another answer: nothing is left out that would take time."""
    problem, each = point(4), experts_baselines.EXPERTS[name]

    def answer(**changed: torch.Tensor) -> torch.Tensor:
        values = {**OP.inputs(problem, "normal", 5, "cpu"), **changed}
        beside = each.prepare(values) if each.prepare is not None else {}
        return each.make(problem, None)({**values, **beside})["part"]

    plain, values = answer(), OP.inputs(problem, "normal", 5, "cpu")
    for tensor in ("lat", "w", "w13", "w2", "s13", "s2"):
        given = values[tensor]
        assert isinstance(given, torch.Tensor)
        other = given + 1 if given.dtype == torch.uint8 else given * 1.5
        assert not torch.equal(answer(**{tensor: other}), plain), tensor
    assert not torch.equal(answer(ids=(values["ids"] + 1) % 16), plain)  # type: ignore[operator]


def test_the_resident_copy_holds_the_values_of_the_codes() -> None:
    values = OP.inputs(point(1), "e8m0", 3, "cpu")
    copy = experts_baselines.resident(values)
    for name, codes, scales in (("w13_bf16", "w13", "s13"), ("w2_bf16", "w2", "s2")):
        exact = mxfp4_unpack(values[codes], values[scales], torch.float64)  # type: ignore[arg-type]
        assert torch.equal(copy[name].double(), exact)  # type: ignore[union-attr]


def test_rows_stand_in_the_order_of_their_experts() -> None:
    ids = torch.tensor([[2, 0], [-1, 2], [3, 0]], dtype=torch.int32)  # -1 goes to expert 0
    place, ends = experts_baselines._order(ids, 5)
    assert place.tolist() == [3, 0, 1, 4, 5, 2] and ends.tolist() == [3, 3, 5, 6, 6]
    lat = torch.arange(3.0)[:, None]
    assert experts_baselines._sorted_rows(lat, place, 2)[:, 0].tolist() == [0, 1, 2, 0, 1, 2]


def test_few_tokens_are_timed_by_slot_and_many_against_all_experts() -> None:
    few, many = ("fused_mxfp4", "gemv_bf16", "grouped_bf16"), ("grouped_bf16", "all_bf16")
    for dims in ("k3-tp8", "k3-tp16", "nano"):
        found = {n: baselines.fitting(point(b, dims=dims), n) for b, n in ((1, 1), (8, 8), (16, 12), (16, 16))}
        assert found == {1: few, 8: few, 12: ("grouped_bf16",), 16: ("grouped_bf16",)}
        assert baselines.fitting(point(32, dims=dims), 32) == baselines.fitting(point(64, dims=dims), 48) == many
    assert baselines.fitting(point(32), 24) == ("grouped_bf16",)


def test_they_are_of_the_bf16_contract_and_of_no_other_op() -> None:
    assert baselines.fitting(point(8, "mxfp8"), 8) == () and baselines.lacking(point(8)) == ""
    assert baselines.fitting(REGISTRY.get("moe_shared").problem("k3-tp8", 8, "sm_90a"), 8) == ()


def test_the_copy_is_made_once_and_shared_and_the_refilled_rows_are_seen(tmp_path: Path) -> None:
    (job,) = (j for j in perf.make_jobs(OP, [stock_spec(point(8))], (), perf.REPETITIONS) if not j.scenario)
    found, failed = job_side._baselines(OP, job, tmp_path, "cpu", False, Out(tmp_path), None)
    made = dict(found)
    assert list(made) == ["stock", "fused_mxfp4", "gemv_bf16", "grouped_bf16"] and failed == {}
    gemv, grouped, stock = made["gemv_bf16"], made["grouped_bf16"], made["stock"]
    assert isinstance(gemv, Functional) and isinstance(grouped, Functional) and isinstance(stock, Functional)
    assert len(gemv.values) == len(gemv.turns.sets) >= timing.MIN_SETS
    for number, (mine, other) in enumerate(zip(gemv.values, grouped.values, strict=True)):
        assert mine["w13_bf16"] is other["w13_bf16"] and "w13_bf16" not in stock.values[number]
    before = grouped.run(grouped.values[0])["part"].clone()
    grouped.turns.refill(1)
    after = grouped.run(grouped.values[0])["part"]
    assert not torch.equal(after, before) and torch.equal(after, stock.run(stock.values[0])["part"])


def test_a_sweep_times_them_in_every_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MIN_CALLS", 2)
    monkeypatch.setattr(timing, "SETTLE", 0)
    jobs = perf.make_jobs(OP, [stock_spec(point(1))], (), {GRAPH: 1, CHAINED: 1, COLD: 1})[:1]
    out = Out(tmp_path)
    out.finish(job_side.run({**perf.make_job(OP, jobs, tmp_path, "cpu")}, out))
    names = {"candidate", "stock", "fused_mxfp4", "gemv_bf16", "grouped_bf16"}
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert len(lines) == 3 and all(f'"{name}": [' in line for line in lines for name in names)


def test_the_bytes_that_they_must_read_are_those_of_the_table() -> None:
    table = [line.split() for line in (experts_baselines.__doc__ or "").splitlines()]
    rows = {line[0].rstrip(":"): line for line in table if line}
    wide, packed = 2 * 3 * 3584 * 384, bytes_per_expert(3584, 384)
    for column, tokens in enumerate((1, 8, 64)):
        distinct, slots = expected_distinct(tokens, 896, 16), 16 * tokens
        said = {
            "distinct": distinct * 1e6, "a": distinct * packed, "fused_mxfp4": slots * packed,
            "gemv_bf16": slots * wide, "grouped_bf16": distinct * wide, "all_bf16": 896 * wide,
            "the": min(slots, 896) * (packed + 2 * wide),
        }  # fmt: skip
        for name, number in said.items():
            line = [w for w in rows[name] if w.isdigit()]
            numbers = (
                [int(w) for w in line if w not in ("896",)]
                if name in ("distinct", "all_bf16")
                else list(map(int, line))
            )
            assert numbers[column] == round(number / 1e6), (name, tokens)


@pytest.mark.parametrize("dims", ["k3-tp8", "k3-tp16", "vllm-tp1"])
@pytest.mark.parametrize("tokens", [1, 2, 8, 64])
def test_a_point_fits_into_the_memory_of_a_gpu(dims: str, tokens: int) -> None:
    """Rotations of candidate, baselines and champion, the copies beside the baselines', and room for graphs."""
    problem = OP.problem(dims, tokens, "sm_90a")
    sizes = OP.sizes(problem)
    allocated = sum(math.prod(t.sizes(sizes)) * DTYPES[t.dtype].bytes for t in OP.present(problem))
    same = OP.cost_of(problem, OP.inputs(point(tokens), "routing_same", 1, "cpu")).bytes * 4  # top 16, not 4
    for touched in (OP.cost(problem).bytes, same):
        sets = timing.sets_needed(touched, 60_000_000, allocated)
        assert sets * touched >= 3 * 60_000_000 or sets == timing.ROTATION_BYTES // allocated
        copies = 2 * 3 * sizes["experts"] * sizes["latent"] * sizes["width"]
        graphs = 8 * 64 * sizes["experts"] * sizes["latent"] * 2
        assert 3 * sets * allocated + sets * copies + graphs < 120e9
