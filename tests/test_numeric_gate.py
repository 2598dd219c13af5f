"""unit-numeric bites: the stock op passes in a candidate's place, and each planted fault is refused under its code.

A real runner process for what a process can do, and once for what a judge can see; the rest, whose runner is as good in
this process, is run here. On CPU the graph check replays plain calls. tests/test_runtime_gpu.py repeats it with
CUDA graphs.
"""

from pathlib import Path

import pytest
import torch
from test_numeric_ops import Bench

from kgen.gates import numeric
from kgen.gates.runner import faults
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.numeric import FAMILY, GRAPH, PADDED
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status

CACHE = Path("/nowhere")  # the stand-in links nothing
FAULTS = [  # op, tokens, fault, code
    ("moe_shared", 4, "zeros", "numeric.error"),
    ("attn_res", 2, "state_bit", "numeric.exact"),
    ("moe_shared", 1, "past_end", "numeric.guard"),
    ("moe_shared", 1, "writes_input", "numeric.inputs_written"),
    ("moe_shared", 1, "unwritten", "numeric.unwritten"),
    ("moe_shared", 1, "jitter", "numeric.nondeterministic"),
    ("moe_shared", 1, "stale", "numeric.graph"),
    ("moe_shared", 16, "mixes_rows", "numeric.padding"),
]
OF_A_PROCESS = [
    ("moe_shared", 4, "scaled", "numeric.error"),
    ("moe_shared", 1, "dies", "numeric.crash"),
    ("moe_shared", 1, "raises", "numeric.crash"),
]


def judged(op: str, tokens: int, fault: str = "", stall: float = 60.0) -> GateResult:
    contract = REGISTRY.get(op)
    spec = stock_spec(contract.problem(contract.pack.small, tokens, "sm_90a"), fault)
    return numeric.run_specs(contract, [spec], cache=CACHE, device="cpu", stall=stall)


@pytest.mark.parametrize(("op", "tokens"), [("moe_shared", 16), ("attn_res", 2)])
def test_the_stock_op_passes_in_a_candidates_place(op: str, tokens: int) -> None:
    result = judged(op, tokens)
    assert (result.status, result.code) == (Status.PASS, "numeric.pass"), result.message
    table = result.evidence["table"]
    contract = REGISTRY.get(op)
    assert {row["what"] for row in table} >= {f.name for f in contract.families} | {"graph"}
    written = contract.outputs(contract.problem(contract.pack.small, tokens, "sm_90a"))
    assert {row["output"] for row in table} == {t.name for t in written}
    numbers = [row for row in table if "candidate_rounded" in row]
    assert numbers and all(row["candidate_rounded"] == row["stock_rounded"] for row in numbers)


@pytest.mark.parametrize(("op", "tokens", "fault", "code"), FAULTS)
def test_a_planted_fault_is_refused_under_its_code(
    op: str, tokens: int, fault: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Bench(tmp_path, monkeypatch).code(op, tokens, faults.FAULTS[fault])
    assert f"numeric.{found}" == code


@pytest.mark.parametrize(
    ("op", "tokens", "fault", "code"),
    [*OF_A_PROCESS, *(pytest.param(*row, marks=pytest.mark.deep) for row in FAULTS)],
)
def test_a_fault_in_a_runner_process_is_refused_under_its_code(op: str, tokens: int, fault: str, code: str) -> None:
    result = judged(op, tokens, fault)
    assert (result.status, result.code) == (Status.FAIL, code), result.message
    assert REGISTRY.get(op).pack.small in result.message, "the message names the point"


def test_a_call_that_never_ends_is_stopped_and_named() -> None:
    result = judged("moe_shared", 1, "hangs", stall=6)
    assert (result.status, result.code) == (Status.FAIL, "numeric.timeout")
    assert "family normal step 0" in result.message


def test_a_missing_object_is_our_error_and_not_the_candidates_failure(tmp_path: Path) -> None:
    contract = REGISTRY.get("moe_shared")
    problem = contract.problem(contract.pack.small, 1, "sm_90a")
    spec = numeric.LoadSpec(problem, "artefact", str(tmp_path / "gone.o"), "0" * 64, "kgen_entry")
    result = numeric.run_specs(contract, [spec], cache=tmp_path, device="cpu")
    assert (result.status, result.code) == (Status.ERROR, "numeric.runner")
    assert "gone.o" in result.message


def test_seeds_are_fresh_and_no_two_checks_share_one() -> None:
    contract = REGISTRY.get("moe_shared")
    specs = [stock_spec(contract.problem(contract.pack.small, t, "sm_90a")) for t in (1, 16)]
    first, second = ({c.seed for _, checks in numeric.make_plan(contract, specs) for c in checks} for _ in range(2))
    assert not first & second
    assert len(first) == sum(len(checks) for _, checks in numeric.make_plan(contract, specs))


def test_the_plan_covers_every_family_padded_counts_and_the_graph() -> None:
    contract = REGISTRY.get("attn_res")
    ((_, checks),) = numeric.make_plan(contract, [stock_spec(contract.problem(contract.pack.small, 64, "sm_90a"))])
    assert {c.family for c in checks if c.kind == FAMILY} == {f.name for f in contract.families}
    assert [c.true_tokens for c in checks if c.kind == PADDED] == [48]
    assert sum(c.kind == GRAPH for c in checks) == 1
    assert max(c.steps for c in checks) == 64, "a state op is stepped"


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_without_a_gpu_the_skip_names_the_next_command() -> None:
    contract = REGISTRY.get("moe_shared")
    spec = stock_spec(contract.problem(contract.pack.small, 1, "sm_90a"))
    result = numeric.run_specs(contract, [spec], cache=CACHE, next_command="kgen kit runs/x -o kit.pyz")
    assert (result.status, result.code) == (Status.SKIP, "numeric.no_gpu")
    assert "kgen kit runs/x -o kit.pyz" in result.message
    assert "kgen kit RUN" in numeric.run_specs(contract, [spec], cache=CACHE).message
