"""A model evaluation whose time runs out: never a pass, what was not reached is named, and its seconds are kept."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.modeleval import MUTANTS, checkpoint, in_process, only, stand, to_spec

from kgen.gates import modeleval
from kgen.gates.runner import host
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status

DEADLINE = 1000.0
FOUND = {"offset": 0, "nbytes": 4096, "dtype": "float32", "shape": [1024]}  # more than the file holds


def run(running: Any = in_process, deadline: float = DEADLINE) -> GateResult:
    broken = [stand(m, 4, m) for m in MUTANTS]
    return modeleval.run(
        REGISTRY.get("moe_shared"), [stand("reordered", 4)], broken, cache=Path("unused"), device="cpu",
        deadline=deadline, seeds=(1, 2, 3), to_spec=to_spec, running=running, sizes=only(), checkpoint=checkpoint(),
    )  # fmt: skip


def ended(side: str, status: str, seconds: float) -> Any:
    """Processes of one side end with this status after their first exercise, the last record cut."""

    @contextmanager
    def running(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        with in_process(kind, job, **options) as outcome:
            if job["side"] != side:
                yield outcome
                return
            first = next(i for i, r in enumerate(outcome.records) if "exercise" in r)
            cut = {**outcome.records[first], "tensors": {"logits": FOUND}}
            kept = (*outcome.records[:first], cut)
            yield dataclasses.replace(outcome, status=status, message="not finished", records=kept, seconds=seconds)

    return running


@pytest.mark.parametrize(("side", "status"), [("candidate", "hung"), ("stock", "error"), ("float64", "error")])
def test_a_process_that_the_deadline_ends_makes_an_error_that_names_what_it_did_not_reach(
    side: str, status: str
) -> None:
    result = run(ended(side, status, DEADLINE))
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete"), result.message
    assert result.message.startswith(f"out of time: {side} nano-random did not reach forced nano-random+first2 t4 n3")
    assert result.evidence["not_reached"] and result.evidence["seconds"][f"{side} nano-random"]["process"] == DEADLINE


@pytest.mark.parametrize(("status", "expected"), [("hung", Status.FAIL), ("error", Status.ERROR)])
def test_a_candidate_that_hangs_before_the_deadline_is_a_crash(status: str, expected: Status) -> None:
    result = run(ended("candidate", status, 30.0))
    assert (result.status, result.code) == (expected, "fullmodel.crash")


def test_without_time_nothing_is_started_and_everything_is_named() -> None:
    result = run(deadline=1.0)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    assert "not started" in result.message and len(result.evidence["not_reached"]) == 6
    assert set(result.evidence["seconds"]) == {
        *(f"{side} nano-random" for side in ("stock", "candidate", "float64", "off")),
        *(f"mutant moe_shared {m} nano-random" for m in MUTANTS), "judge",
    }  # fmt: skip
