"""The full-model gate on CPU stand-ins: legitimate changes pass, small planted faults are refused, each by its code."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_gate import MUTANTS, in_process, judge, stand

from kgen.gates import fullmodel
from kgen.gates.runner import host
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status, canonical_json, to_json


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def passed() -> GateResult:
    return judge("reordered")


@pytest.mark.parametrize("name", ["reordered", "unrounded"])
def test_a_legitimate_change_of_rounding_passes(name: str, passed: GateResult) -> None:
    result = passed if name == "reordered" else judge(name)
    assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message


def test_both_mutants_were_refused_on_numbers_alone(passed: GateResult) -> None:
    mutants = passed.evidence["mutants"]
    assert set(mutants) == set(MUTANTS)
    assert all(m["refused"] and "as far from float64" in m["first"] for m in mutants.values())


def test_the_evidence_states_ratios_with_intervals_and_is_plain_json(passed: GateResult) -> None:
    numbers = passed.evidence["dims"]["nano"]
    point, low, high = numbers["modes"]["eager"]["hidden"]
    assert low <= point <= high and low < high
    assert {"t4 eager", "t8 eager", "t8/n6 eager"} == set(numbers["batches"])
    agreement = numbers["modes"]["eager"]["agreement"]
    assert agreement["items"] == sum(b["rows"] for b in numbers["batches"].values())
    assert 0.5 < agreement["stock"] <= 1.0
    assert numbers["recomposed"]["t8"]["other_bin"] == 16
    assert passed.evidence["attestation"]["nano t8"]["per_step"] == {"reordered": 8}
    assert canonical_json(to_json(passed))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tile_scale", "as far from float64 as stock's"),
        ("drop_last_k", "as far from float64 as stock's"),
        ("wrong_row", "row 2 of the batch is, at every step,"),
        ("nan", "not finite"),
    ],
)
def test_a_planted_fault_is_refused_on_its_numbers(name: str, says: str) -> None:
    result = judge(name, bins=(8,))
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.logits")
    assert says in result.message


def test_a_failing_call_is_the_candidates_crash() -> None:
    result = judge("raises", bins=(8,))
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.crash")
    assert "candidate nano" in result.message and "illegal memory access" in result.message


@pytest.mark.parametrize(
    ("kernels", "says"),
    [
        (["reordered", "reordered"], "the build record says"),
        ([], "name no launch"),
    ],
)
def test_launches_that_differ_from_the_build_record_fail(kernels: list[str], says: str) -> None:
    result = judge("reordered", bins=(8,), kernels=kernels)
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.attestation")
    assert says in result.message


def test_a_gate_that_lets_a_mutant_pass_is_an_error() -> None:
    blind = [stand("", 8, "tile_scale"), stand("drop_last_k", 8, "drop_last_k")]
    result = judge("reordered", bins=(8,), mutants=blind)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.insensitive")
    assert "mutant tile_scale nano passed" in result.message


@pytest.mark.parametrize(
    "mutants", [[], [stand("tile_scale", 8, "tile_scale")], [stand("raises", 8, m) for m in MUTANTS]]
)
def test_a_gate_without_working_mutants_is_an_error(mutants: list[object]) -> None:
    result = judge("reordered", bins=(8,), mutants=mutants)  # type: ignore[arg-type]
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.insensitive")


def test_processes_of_their_own_come_to_the_same_verdict() -> None:
    result = judge("reordered", bins=(8,), running=host.running)
    assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message


def test_a_candidate_whose_process_dies_fails_alone() -> None:
    result = judge("dies", bins=(8,), running=host.running)
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.crash")
    assert "candidate nano" in result.message and "SIGSEGV" in result.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_gate_skips_and_names_the_next_command() -> None:
    from pathlib import Path

    op = REGISTRY.get("moe_shared")
    result = fullmodel.run(op, [stand("", 4)], [], cache=Path("x"), next_command="kgen kit R -o kit.pyz")
    assert (result.status, result.code) == (Status.SKIP, "fullmodel.no_gpu")
    assert result.message.endswith("next: kgen kit R -o kit.pyz")


@pytest.mark.parametrize("engine", ["stock", "candidate"])
def test_a_batch_without_a_record_is_no_pass(engine: str) -> None:
    @contextmanager
    def forgetful(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        with in_process(kind, job, **options) as outcome:
            mine = not job["loads"] if engine == "stock" else bool(job["loads"] and job["enabled"])
            kept = [r for r in outcome.records if not (mine and r.get("batch") == "t4")]
            yield dataclasses.replace(outcome, records=tuple(kept))

    result = judge("reordered", running=forgetful)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.crash"), result.message
    assert "left no record" in result.message


def test_an_op_without_a_seat_in_the_model_is_our_error_and_blames_nobody() -> None:
    op = REGISTRY.get("kda_core")
    result = fullmodel.run(op, [stand("reordered", 4)], [], cache=Path("none"), device="cpu")
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.no_seat")
    assert "kda_core" in result.message
