"""Run folders hold everything that a resumed process, a reader or a promotion needs."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.limits import read_only, small_disk
from support.sets import CURRENT, OP, make_case

from kgen.promotion import Refused, gather, promote
from kgen.records import Candidate, GateResult, Origin, Status, Verdict
from kgen.store import Blobs, Durable, IntegrityError, LockBusy, Run, Runs, SetPath, StoreError
from kgen.store.documents import json_bytes


def candidate(text: str = "one") -> Candidate:
    return Candidate(OP, f"# {text}\n", Origin("search", {"seed": 3}))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Runs(tmp_path / "runs").create(OP, "propose", "0.1.0", {"rounds": 2})


def test_run_is_named_by_time_and_op_and_is_found_again(run: Run) -> None:
    runs = Runs(run.path.parent)
    stamp, op, tail = run.id.split("-")
    assert op == OP and len(stamp) == 16 and stamp.endswith("Z") and len(tail) == 6
    assert runs.list() == (run,)
    for name in (run.id, tail, "latest", str(run.path)):
        assert runs.find(name).id == run.id
    assert run.info.settings == {"rounds": 2}


def test_runs_are_named_in_the_order_of_their_making(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    made = [runs.create(OP, "propose", "0.1.0") for _ in range(5)]  # within a second
    assert list(runs.list()) == made
    (tmp_path / "runs" / "99991231T235959Z-moe_shared-ffffff").symlink_to(made[0].path)
    assert runs.create(OP, "propose", "0.1.0").info.op == OP  # there is no second after that one


def test_a_run_that_was_never_whole_is_swept_up_by_a_later_one(run: Run) -> None:
    old, young = (run.path.parent / f".tmp-{name}" for name in ("old", "young"))
    kept = run.path / ".tmp-kept"  # that run's own to sweep, under its lock
    for path in (old, young, kept):
        path.mkdir()
        (path / "kit.key").write_bytes(b"x")
    for path in (old, kept):
        os.utime(path, (0, 0))
    Runs(run.path.parent).create(OP, "propose", "0.1.0")
    assert [path.exists() for path in (old, young, kept)] == [False, True, True]


def test_unknown_or_ambiguous_run_is_one_line(run: Run) -> None:
    runs = Runs(run.path.parent)
    runs.create(OP, "propose", "0.1.0")
    for name, text in (("zzz", "no run 'zzz'"), (OP, "fits 2 runs")):
        with pytest.raises(ValueError, match=text) as caught:
            runs.find(name)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="there are none yet"):
        Runs(run.path.parent / "empty").find("latest")


@pytest.mark.parametrize("op", ["", "../x", "a b", "A", "a/b"])
def test_run_folder_cannot_be_put_elsewhere_by_its_op(tmp_path: Path, op: str) -> None:
    with pytest.raises(ValueError, match="not an op's name"):
        Runs(tmp_path).create(op, "propose", "0.1.0")
    assert list(tmp_path.iterdir()) == []


def test_key_is_secret_and_each_runs_own(run: Run) -> None:
    assert stat.S_IMODE((run.path / "kit.key").stat().st_mode) == 0o600
    other = Runs(run.path.parent).create(OP, "propose", "0.1.0")
    assert len(run.key()) == 32 and run.key() == run.key() != other.key()
    (run.path / "kit.key").write_bytes(b"short")
    with pytest.raises(IntegrityError, match="damaged"):
        run.key()


def test_candidates_are_numbered_and_the_same_source_is_added_once(run: Run) -> None:
    with run.lock():
        first, second, again = (run.add(candidate(text)) for text in ("one", "two", "one"))
    assert [f.path.name[:5] for f in run.folders()] == ["0001-", "0002-"]
    assert again.path == first.path
    assert second.candidate() == candidate("two")
    assert run.folder("2").path == run.folder(candidate("two").id[:8]).path == second.path
    with pytest.raises(ValueError, match="0 candidates"):
        run.folder("7")


def test_candidate_of_another_op_is_refused(run: Run) -> None:
    with run.lock(), pytest.raises(ValueError, match="is about"):
        run.add(Candidate("other", "x", Origin("search")))


def test_changed_source_is_noticed(run: Run) -> None:
    folder = run.add(candidate())
    (folder.path / "kernel.py").write_text("# other\n")
    with pytest.raises(IntegrityError, match=r"kernel\.py is damaged"):
        folder.candidate()


def test_results_and_verdict_come_back_and_end_the_interruption(run: Run) -> None:
    folder = run.add(candidate())
    assert folder.interrupted and run.interrupted() == (folder,)
    result = GateResult("compile", Status.PASS, "compile.ok", "built", {"kernels": [1, 2]}, 0.5)
    folder.write_result(result)
    assert folder.result("compile") == result
    assert folder.result("perf-sweep") is None
    folder.write_verdict(Verdict(candidate().id, (result,)))
    assert folder.verdict() == Verdict(candidate().id, (result,))
    assert run.interrupted() == ()


def test_damaged_result_is_named(run: Run) -> None:
    folder = run.add(candidate())
    (folder.path / "compile.json").write_bytes(b'{"schema": "kgen.gate-result/1"')
    with pytest.raises(IntegrityError, match=r"compile\.json is damaged"):
        folder.result("compile")


def test_state_tells_running_interrupted_and_finished(run: Run) -> None:
    assert run.state == "interrupted"
    with run.lock():
        assert run.state == "running"
        with pytest.raises(LockBusy), run.lock():
            pass
        run.finish("promotable")
    assert run.state == "finished"
    assert run.info.outcome == "promotable"


KILLED = """
import os, signal, sys
from pathlib import Path
from kgen.records import Candidate, Origin
from kgen.store import Durable, Run
count = iter(range(1000))
def step(name):
    if next(count) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
run = Run(Path(sys.argv[1]), Durable(step))
with run.lock():
    run.add(Candidate(run.info.op, "# killed", Origin("search")))
"""


def test_kill_while_adding_leaves_no_half_candidate(run: Run) -> None:
    outcomes = set()
    for step in range(0, 10):
        done = subprocess.run([sys.executable, "-c", KILLED, str(run.path), str(step)], check=False)
        folders = run.folders()
        assert all(f.candidate().source == "# killed" for f in folders)
        outcomes.add((done.returncode, len(folders)))
        for folder in folders:
            for path in folder.path.iterdir():
                path.unlink()
            folder.path.rmdir()
    assert outcomes >= {(-signal.SIGKILL, 0), (-signal.SIGKILL, 1), (0, 1)}


def test_full_disk_while_adding_leaves_the_run_readable(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        run = Runs(disk).create(OP, "propose", "0.1.0")
        with pytest.raises(StoreError, match="No space left"), run.lock():
            run.add(Candidate(OP, "#" * (1 << 20), Origin("search")))
        assert run.folders() == ()
        with run.lock():
            assert run.add(candidate()).candidate() == candidate()


def test_read_only_runs_folder_is_one_clear_error_and_still_readable(run: Run) -> None:
    with read_only(run.path.parent):
        with pytest.raises(StoreError, match="Permission denied"):
            Runs(run.path.parent).create(OP, "propose", "0.1.0")
        assert run.info.op == OP and run.folders() == ()


def test_foreign_folders_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("x")
    assert Runs(tmp_path).list() == ()


@given(name=st.text(max_size=20))
def test_extra_files_stay_inside_the_candidate_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = Run(tmp_path_factory.getbasetemp(), Durable())
    inside = folder.path / "0001-aaaaaaaaaaaa"
    from kgen.store import CandidateFolder

    try:
        path = CandidateFolder(inside, OP).file(name)
    except ValueError:
        return
    assert os.path.dirname(os.path.normpath(path)) == str(inside)  # noqa: PTH120


def test_a_judged_candidate_is_promoted_from_its_folder(tmp_path: Path) -> None:
    run = Runs(tmp_path / "runs").create(OP, "propose", "0.1.0")
    case, blobs = make_case(key=run.key(), run=run.id), Blobs(tmp_path / "cache")
    for data in case.objects.values():
        blobs.put(data, ".o")
    with run.lock():
        folder = run.add(case.candidate)
        with pytest.raises(Refused, match="no verdict yet"):
            gather(folder, blobs)
        folder.write_verdict(case.verdict)
        with pytest.raises(Refused, match="no evidence"):
            gather(folder, blobs)
        folder.write_builds(case.builds)
        folder.write("evidence.json", json_bytes(case.evidence))
        folder.write("raw.json.xz", case.raw)
    gathered = gather(run.folder("1"), blobs)
    assert gathered == replace(case, against={})  # evidence that names no kernel in place was measured against stock
    assert promote(SetPath(tmp_path / "set"), gathered, CURRENT, run.key()).trust == "own-key"
