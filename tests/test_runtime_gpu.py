"""The gates' own machinery on a real GPU: the stock op in a candidate's place, with real CUDA graphs and real times."""

from pathlib import Path

import pytest
import torch

from kgen.gates import numeric, perf, timing
from kgen.gates.environment import device_arch, environment
from kgen.gates.runner.job import LoadSpec, stock_spec
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH
from kgen.gates.runner.rank import rank
from kgen.ops import REGISTRY
from kgen.records import Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
OP = REGISTRY.get("moe_shared")
SERVED = OP.pack.served[0]


def spec(tokens: int, fault: str = "", op: str = "moe_shared", dims: str = SERVED) -> LoadSpec:
    return stock_spec(REGISTRY.get(op).problem(dims, tokens, device_arch()), fault)


def test_the_stock_op_passes_with_cuda_graphs(tmp_path: Path) -> None:
    result = numeric.run_specs(OP, [spec(1), spec(16)], cache=tmp_path)
    assert (result.status, result.code) == (Status.PASS, "numeric.pass"), result.message


def test_a_state_op_passes_through_its_steps(tmp_path: Path) -> None:
    result = numeric.run_specs(REGISTRY.get("attn_res"), [spec(2, op="attn_res")], cache=tmp_path)
    assert (result.status, result.code) == (Status.PASS, "numeric.pass"), result.message


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("scaled", "numeric.error"),
        ("past_end", "numeric.guard"),
        ("writes_input", "numeric.inputs_written"),
        ("unwritten", "numeric.unwritten"),
        ("mixes_rows", "numeric.padding"),
    ],
)
def test_faults_are_found_on_the_device(tmp_path: Path, fault: str, code: str) -> None:
    result = numeric.run_specs(OP, [spec(16, fault, dims=OP.pack.small)], cache=tmp_path)
    assert (result.status, result.code) == (Status.FAIL, code), result.message


def test_the_sweep_times_compiled_baselines_and_judges_every_output(tmp_path: Path) -> None:
    few = {GRAPH: 10, CHAINED: 5, COLD: 10}
    result, points, _ = perf.run_specs(OP, [spec(1), spec(16)], cache=tmp_path, repetitions=few)
    assert result.code in ("perf.pass", "perf.no_win"), result.message
    assert {(p.tokens, p.column) for p in points} == {(n, c) for n in (1, 16, 12) for c in few}
    assert all(p.timer == timing.TIMERS[p.column] for p in points)
    assert all(1.0 < p.candidate_us < 500 for p in points)
    assert {"stock", "compile"} == set(points[0].baselines_us)


def test_a_graph_replay_is_timed_within_reason(tmp_path: Path) -> None:
    (row,) = rank([spec(8)], cache=tmp_path)
    assert row.status == "ok" and row.rel_l2 == 0.0
    assert row.us == pytest.approx(row.stock_us, rel=0.5), "the stand-in is the stock op and one copy"


def test_persisting_l2_is_refused() -> None:
    torch.zeros(1, device="cuda")
    assert timing.refuse_persisting_l2("cuda") in (True, False)


def test_the_environment_is_read() -> None:
    found = environment()
    assert found.gpu != "none" and found.arch == device_arch() and found.l2_bytes > 0 and found.sms > 0
