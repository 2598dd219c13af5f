"""Real `kgen propose` processes, killed or interrupted at several stages: a resume repeats nothing finished."""

import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.loops import (
    FORBIDDEN,
    SECONDS,
    SMALL,
    cold,
    kgen,
    killed_when,
    only_json,
    recording,
    source,
    stamps,
    started,
    the_run,
)

from kgen.loop.plans import read_plans
from kgen.loop.rounds import read_rounds
from kgen.store import Run, Runs

ONE_BIN = ("--arch", "sm_90a", "--dims", "nano", "--tokens", "8", "--no-interpret")
COUNT = 5  # candidates: enough that a kill finds some done and some not


def has(run: Run, name: str, count: int = 1) -> bool:
    return len(list(run.path.glob(f"*/{name}"))) >= count


def ranked(run: Run) -> bool:
    return any(r.ranked for r in read_rounds(run))


STAGES: dict[str, Callable[[Run], bool]] = {
    "planned": lambda run: bool(read_plans(run)),
    "proposed": lambda run: has(run, "kernel.py", COUNT),
    "in the quick tier": lambda run: has(run, "quick.json", 2),
    "in the full matrix": ranked,
    "after a finalist": lambda run: any((p.parent / "compile.json").is_file() for p in run.path.glob("*/builds.json")),
}


def propose(home: Path, name: str, *point: str) -> tuple[str, ...]:
    sources = [*(source(f"{name} {i}") for i in range(COUNT - 1)), FORBIDDEN + f"# {name}\n"]
    recorded = recording(home / "recorded", sources)
    return ("propose", "--op", "moe_shared", "--proposer", "replay", "--replay", str(recorded), *(point or SMALL))


def check_whole(run: Run) -> None:
    verdicts = [f.verdict() for f in run.folders()]
    assert len(verdicts) == COUNT and all(v is not None for v in verdicts)
    assert sum(v.staged for v in verdicts if v) == 2
    assert [v.failed.code for v in verdicts if v and v.failed] == ["screen.import"]
    assert run.info.outcome == "staged"


DEEP = {*STAGES} - {"in the full matrix"}  # there most is left to be lost; each takes a run of its own


@pytest.mark.parametrize("stage", [pytest.param(s, marks=[pytest.mark.deep] * (s in DEEP)) for s in STAGES])
def test_kill_9_loses_nothing_resume_repeats_nothing_and_a_finished_run_stays_as_it_is(
    stage: str, tmp_path: Path
) -> None:
    process = killed_when(tmp_path, STAGES[stage], signal.SIGKILL, *propose(tmp_path, stage))
    process.communicate(timeout=30)
    run = the_run(tmp_path)
    before, planned = stamps(run), read_plans(run)
    assert run.state == "interrupted" and planned
    if stage == "in the full matrix":  # the checkpoint is a convenience
        (run.path / "graph.sqlite").unlink()
    done = kgen(tmp_path, "resume", run.id)
    assert done.returncode == 0, done.stderr
    check_whole(run)
    after = stamps(run)
    assert {k: after[k] for k in before} == before
    assert read_plans(run)[0] == planned[0] and read_plans(run)[-1].stop is not None
    info = run.info
    again = cold(tmp_path, "resume", run.id)  # of a finished run
    assert again.returncode == 0, again.stderr
    assert run.info == info and stamps(run) == after


def test_ctrl_c_marks_the_run_and_resumes_take_it_up_one_at_a_time(tmp_path: Path) -> None:
    process = killed_when(tmp_path, STAGES["proposed"], signal.SIGINT, *propose(tmp_path, "sigint", *ONE_BIN))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err and "kgen resume" in err
    run = the_run(tmp_path)
    assert (run.info.outcome, run.info.finished, run.state) == ("interrupted", "", "interrupted")
    before = stamps(run)
    with run.lock():  # another process works on it
        busy = kgen(tmp_path, "resume", run.id, "--json")
    assert busy.returncode == 4 and "in use by another kgen process" in busy.stderr
    assert only_json(busy.stdout)["exit_code"] == 4
    # Two at once: the second finds the run in use, or, where it starts late, finished. Both never work on it.
    both = [started(tmp_path, "resume", run.id, "--json") for _ in range(2)]
    said = [p.communicate(timeout=120) for p in both]
    assert sorted(p.returncode for p in both) in ([0, 0], [0, 4]), said
    for process, (out, _) in zip(both, said, strict=True):
        assert process.returncode or only_json(out)["outcome"] == "staged"
    check_whole(run)
    after = stamps(run)
    assert {k: after[k] for k in before} == before


def test_what_an_interrupt_prints_takes_up_that_run_as_it_is_printed(tmp_path: Path) -> None:
    """The run lies elsewhere than where runs are looked for, under a name with a blank."""
    words = ["propose", "--op", "moe_shared", *SMALL, "--proposer", "mailbox", "--runs", "my runs"]
    for _ in range(2):
        process = started(tmp_path, *words)
        assert process.stderr is not None
        while not (told := process.stderr.readline()).startswith("run "):
            assert told, process.wait()
        (run,) = Runs(tmp_path / "my runs").list()
        assert told == f"run {run.id} in {run.path}\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        _, found, command = err.splitlines()[-1].partition("interrupted; what was finished is kept: kgen ")
        assert found and run.id in command
        words = shlex.split(command)


def test_sigterm_is_as_good_as_ctrl_c(tmp_path: Path) -> None:
    process = killed_when(tmp_path, STAGES["proposed"], signal.SIGTERM, *propose(tmp_path, "sigterm"))
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads((the_run(tmp_path).path / "run.json").read_text())["outcome"] == "interrupted"
