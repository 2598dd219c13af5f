"""The GPU gates inside a run, with paper gates on a paper GPU: pieces, resumption, evidence; the gates have tests of
their own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import sets
from support.loops import ListProposer
from support.proven import DIMS, OP, RATIOS, proven

from kgen.gates import kit_units
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit_units import GATE_NAMES, Done, Unit
from kgen.gates.perf import counts
from kgen.loop import proving
from kgen.loop.settings import Settings, read_settings
from kgen.loop.spending import read_uses
from kgen.loop.steps import Steps, reopen
from kgen.loop.work import Work
from kgen.promotion.gather import EVIDENCE
from kgen.records import GateResult, Status
from kgen.store import IntegrityError

GATES = tuple(GATE_NAMES.values())


class PaperGates:
    """Answers for each gate; `calls` are the pieces that were run."""

    def __init__(self, **answers: Status) -> None:
        self.answers, self.calls = answers, list[str]()

    def runners(self) -> Mapping[str, Callable[[Any, Unit, Path, float], Done]]:
        return dict.fromkeys(GATE_NAMES, self.run)

    def run(self, op: object, unit: Unit, cache: Path, deadline: float) -> Done:
        self.calls.append(unit.name)
        status = self.answers.get(unit.gate, Status.PASS)
        if status is Status.ERROR:
            raise RuntimeError("the driver went away")
        result = GateResult(GATE_NAMES[unit.gate], status, f"{unit.gate}.{status}", "said", {}, 1.0, GATE_CONTRACT)
        if unit.gate != "perf":
            return Done(result)
        problems = [a.record.problem for a in unit.artefacts]
        points = tuple(sets.point(p, RATIOS[p.tokens], n) for p in problems for n in counts(OP, p.tokens))
        return Done(result, points, {unit.name: [1.0, 2.0]})


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr(kit_units, "environment", sets.environment)
    monkeypatch.setattr(proving, "skip_without", lambda *_: None)
    made = proven(tmp_path / "runs", tmp_path / "cache")
    settings = read_settings(made.run.info.settings, "")
    found = Work(made.run, OP, settings, ListProposer(), tmp_path / "cache")
    found.__dict__["arch"] = "sm_90a"  # a GPU on paper
    return found


def go(work: Work, gates: PaperGates) -> list[GateResult]:
    (folder,) = work.run.folders()
    results = []
    for gate in GATES:
        results.append(proving.prove(work, folder, gate, gates.runners()))
        if results[-1].status is not Status.PASS:
            break
    proving.settle(work, folder)
    Steps(work).judge({"round": 1, "candidates": [folder.path.name], "alive": [], "over": ""})
    return results


def test_skips_are_run_where_there_is_a_gpu_and_become_signed_evidence(work: Work) -> None:
    gates = PaperGates()
    assert [r.status for r in go(work, gates)] == [Status.PASS] * 3
    (folder,) = work.run.folders()
    verdict = folder.verdict()
    assert verdict is not None and verdict.promotable
    assert folder.file(EVIDENCE).exists()
    assert gates.calls == [f"unit-numeric sm_90a {DIMS} t1-t16", "full-model-eval", f"perf-sweep sm_90a {DIMS} t1-t16"]


def test_what_a_run_proves_here_promotes_as_its_own(work: Work, tmp_path: Path) -> None:
    from kgen.promotion import Current, gather, promote
    from kgen.store import Blobs, SetPath

    go(work, PaperGates())
    case = gather(work.run.folders()[0], Blobs(work.cache / "objects"))
    current = Current({OP.name: OP.contract_sha256()}, GATE_CONTRACT)
    promotion = promote(SetPath(tmp_path / "set"), case, current, work.run.key())
    assert promotion.trust == "own-key" and len(promotion.objects) == 3


def test_finished_pieces_are_not_run_again_after_a_crash(work: Work) -> None:
    (folder,) = work.run.folders()
    first = PaperGates()
    proving.prove(work, folder, GATES[0], first.runners())
    folder.file(f"{GATES[0]}.json").unlink()  # killed before the gate's result was written
    second = PaperGates()
    assert proving.prove(work, folder, GATES[0], second.runners()).passed
    assert len(first.calls) == 1 and second.calls == []


def test_an_error_of_the_machine_is_no_verdict_and_is_tried_again(work: Work) -> None:
    results = go(work, PaperGates(model=Status.ERROR))
    assert results[-1].status is Status.ERROR and "the driver went away" in results[-1].message
    (folder,) = work.run.folders()
    assert not folder.file(EVIDENCE).exists()
    assert reopen(work) == 1
    gates = PaperGates()
    assert [r.status for r in go(work, gates)] == [Status.PASS] * 3
    assert not any(name.startswith("unit-numeric") for name in gates.calls)


def test_a_failure_is_the_candidates_and_stays(work: Work) -> None:
    results = go(work, PaperGates(numeric=Status.FAIL))
    assert [r.status for r in results] == [Status.FAIL]
    (folder,) = work.run.folders()
    verdict = folder.verdict()
    assert verdict is not None and verdict.failed is not None and verdict.failed.code == "numeric.fail"
    assert go(work, gates := PaperGates())[0].status is Status.FAIL and gates.calls == []


def test_no_time_left_is_a_skip_that_a_resume_takes_up(work: Work) -> None:
    (folder,) = work.run.folders()
    work.spent = work.settings.minutes * 60.0
    result = proving.prove(work, folder, GATES[0], PaperGates().runners())
    assert (result.status, result.code) == (Status.SKIP, "numeric.out_of_time")
    work.spent = 0.0
    assert proving.prove(work, folder, GATES[0], PaperGates().runners()).passed


def test_a_budget_of_gpu_seconds_that_does_not_reach_is_a_skip_that_a_resume_with_more_takes_up(work: Work) -> None:
    (folder,) = work.run.folders()
    poor = replace(work, settings=replace(work.settings, max_gpu_seconds=5.0))
    poor.__dict__["arch"] = "sm_90a"
    poor.ledger.took(GATES[0], 6.0)  # what a piece of this gate took before
    gates = PaperGates()
    result = proving.prove(poor, folder, GATES[0], gates.runners())
    assert (result.status, result.code, gates.calls) == (Status.SKIP, "numeric.out_of_budget", [])
    assert "--max-gpu-seconds" in result.message and read_uses(folder) == ()
    assert proving.prove(work, folder, GATES[0], gates.runners()).passed and len(gates.calls) == 1
    (use,) = read_uses(folder)
    assert use.done and (use.gate, use.what) == (GATES[0], gates.calls[0])


def test_without_a_gpu_finished_skips_stand(tmp_path: Path) -> None:
    made = proven(tmp_path / "runs", tmp_path / "cache")
    work = Work(made.run, OP, read_settings(made.run.info.settings, ""), ListProposer(), tmp_path / "cache")
    work.__dict__["arch"] = ""
    assert reopen(work) == 0
    work.__dict__["arch"] = "sm_90a"
    assert reopen(work) == 1


def test_settings_of_another_kgen_are_refused_in_one_line() -> None:
    stored = {"schema": Settings.SCHEMA, "op": OP.name, "proposer": "search", "temperature": 3}
    with pytest.raises(IntegrityError, match="temperature"):
        read_settings(stored, "run.json")
