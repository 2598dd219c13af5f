"""Hardware counters: a real runner process under a stand-in for ncu; every reason for a skip; never a verdict."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.kits import make
from support.loops import OP, recording, source

from kgen.diagnosis.perf import findings
from kgen.gates.counters import FILE, Counters, CounterSet, chosen, take_spec
from kgen.gates.runner.job import LoadSpec, stock_spec
from kgen.gates.runner.ncu import METRICS
from kgen.loop.counting import keep_counters, read, store, with_counters
from kgen.loop.settings import Settings
from kgen.proposers.techniques import classes
from kgen.records import GateResult, Status, Verdict, from_json, to_json
from kgen.store import Runs
from kgen.store.errors import IntegrityError

STANDIN = ROOT / "tests" / "support" / "ncu_standin" / "ncu"
Profiler = Callable[[str], None]


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiler:
    """Puts the stand-in first in PATH, and says what it is to do."""
    shutil.copy(STANDIN, tmp_path / "ncu")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def does(mode: str) -> None:
        (tmp_path / "mode").write_text(mode)

    return does


def small(fault: str = "") -> LoadSpec:
    return stock_spec(OP.problem(OP.pack.small, 1, "sm_90a"), fault)


def test_a_runner_under_the_profiler_leaves_every_metric_by_kernel(profiler: Profiler, tmp_path: Path) -> None:
    profiler("counters")
    found = take_spec(small(), cache=tmp_path, device="cpu", seconds=120)
    assert not found.skipped and found.problem == f"{OP.name}/{OP.pack.small}/t1/sm_90a"
    assert found.kernels == {"k1": {name: 1000.0 + i for i, name in enumerate(METRICS)}}
    assert from_json(CounterSet, to_json(CounterSet((found,)))) == CounterSet((found,))


@pytest.mark.parametrize(
    ("mode", "words"), [("forbidden", "ERR_NVGPUCTRPERM"), ("nothing", "No kernels were profiled")]
)
def test_what_the_profiler_refuses_is_a_skip_with_its_reason(
    profiler: Profiler, tmp_path: Path, mode: str, words: str
) -> None:
    profiler(mode)
    found = take_spec(small(), cache=tmp_path, device="cpu", seconds=120)
    assert words in found.skipped and not found.kernels


def test_a_call_that_raises_is_a_skip_and_no_verdict(profiler: Profiler, tmp_path: Path) -> None:
    profiler("nothing")
    found = take_spec(small("raises"), cache=tmp_path, device="cpu", seconds=120)
    assert "did not end well" in found.skipped


def test_without_ncu_or_without_a_gpu_nothing_is_started(
    profiler: Profiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no GPU of sm_103a here" in take_spec(stock_spec(OP.problem("nano", 1, "sm_103a")), cache=tmp_path).skipped
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert take_spec(small(), cache=tmp_path, device="cpu").skipped == "ncu is not installed"


def test_counters_stand_in_a_candidate_s_folder_and_reach_the_diagnosis(tmp_path: Path) -> None:
    (folder,) = Runs(tmp_path).find(recording(tmp_path, [source("a")]).name).folders()
    assert read(folder) == ()
    counted = dict.fromkeys(METRICS, 0.0) | {"dram__bytes_read.sum": 2.5e6}
    counted |= {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 640.0}
    store(folder, [Counters("c", "p/d/t8/sm_90a", "0", {"k": counted}), Counters("c", "q", "0", skipped="none")])
    built = {"problems": {"p/d/t8/sm_90a": {"launches": []}, "other": {}}}
    verdict = Verdict("c", (GateResult("compile", Status.PASS, "compile.pass", "", built),))
    shown = with_counters(folder, verdict)
    problems = shown.results[0].evidence["problems"]
    assert "counters" not in built["problems"]["p/d/t8/sm_90a"] and shown.promotable == verdict.promotable
    (found,) = [f for f in findings(problems, []) if f.code == "counters"]
    assert "read from memory 2.5e+06 byte" in found.text and "bank conflicts: pad" in found.fix
    assert "bank-conflicts" in classes([found], None)  # which brings the pages on that
    assert folder.file(FILE).is_file() and len(found.line) < 700


def test_counters_of_a_kit_are_kept_where_they_are_of_what_the_run_built(tmp_path: Path) -> None:
    run = Runs(tmp_path).find(recording(tmp_path, [source("a")]).name)
    (folder,) = run.folders()
    built = make(tmp_path, 1).record
    folder.write_builds((built,))
    right = Counters("c", built.problem.key, built.object_sha256, {"k": {"dram__bytes_read.sum": 1.0}})
    document = json.dumps(to_json(CounterSet((right, Counters("c", built.problem.key, "1" * 64, {"k": {}}))))).encode()
    assert keep_counters(run, {"counters.json": document}) == 1 and read(folder) == (right,)
    with pytest.raises(IntegrityError):
        keep_counters(run, {"counters.json": b"{}"})


def test_settings_of_earlier_runs_read_as_without_counters_and_write_the_same() -> None:
    settings = Settings(OP.name, "search")
    assert "counters" not in to_json(settings) and not from_json(Settings, to_json(settings)).counters
    assert to_json(Settings(OP.name, "search", counters=True))["counters"] is True


def test_the_smallest_and_the_largest_served_bin_of_this_arch_are_counted(tmp_path: Path) -> None:
    made = [make(tmp_path, t, d) for d in (OP.pack.served[0], "nano") for t in (8, 1, 4)]
    assert [b.record.problem.tokens for b in chosen(OP, made, made[0].record.problem.arch)] == [1, 8]
    assert chosen(OP, made, "sm_999") == []
