"""What `kgen watch` and the live screen of `kgen propose` say is what the run folder holds, at any moment."""

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from support.loops import OP, called
from support.proven import Proven, proven

from kgen.cli import glance as glances
from kgen.cli.glance import BEACON, Beacon, Stage, glance, lines, stage_of
from kgen.cli.progress import Watcher
from kgen.cli.watch import picture
from kgen.gates.contract import GATE_CONTRACT
from kgen.loop.events import Event
from kgen.loop.rounds import Ranked, Round, write_round
from kgen.loop.spending import Use, Uses
from kgen.records import Candidate, GateResult, Origin, Status
from kgen.store.documents import json_bytes

ESC = "\x1b[31m"


@pytest.fixture
def made(home: Path) -> Proven:
    return proven(home / "runs", home / "cache")


def fail(made: Proven, source: str, message: str = "no such tile") -> str:
    """One more candidate, refused; its folder's name."""
    with made.run.lock():
        folder = made.run.add(Candidate(OP.name, source, Origin("test")))
        folder.write_result(GateResult("compile", Status.FAIL, "compile.raised", message, {}, 1.0, GATE_CONTRACT))
    return folder.path.name


def test_the_funnel_counts_each_gate_by_status(made: Proven) -> None:
    fail(made, "# a\n")
    fail(made, "# b\n")
    seen = glance(made.run, OP)
    assert (seen.candidates, seen.judged) == (3, 1)
    assert seen.funnel["compile"] == {"pass": 1, "fail": 2}
    assert seen.funnel["unit-numeric"] == seen.funnel["perf-sweep"] == {"skip": 1}
    assert "funnel   3 proposed > compile 1 (2 fail) > unit-numeric 0 (1 skip)" in lines(seen)[1]


def test_the_best_so_far_stands_against_the_floor_of_the_same_points(made: Proven) -> None:
    # hidden 7168, width 768: three matrices of 768 x 7168 in bf16, and one row in and one out for each token
    assert OP.pack.quick_bins == (1, 8)
    weights, row = 3 * 768 * 7168 * 2, 2 * 7168 * 2
    best = glance(made.run, OP).best
    assert best is not None and best.us == 12.5 and not best.measured
    assert best.floor_us == pytest.approx((2 * weights + 9 * row) / 4.48e6)
    assert f"12.50 µs by static cost, floor {best.floor_us:.2f} µs" in "\n".join(lines(glance(made.run, OP)))


def test_a_time_goes_before_a_guess_however_low(made: Proven) -> None:
    name = fail(made, "# a\n")
    order = (Ranked(name, 30.0, measured=True), Ranked(name, float("inf"), measured=True))
    write_round(made.run, Round(2, (name,), order=order, ranked=True, judged=True))
    best = glance(made.run, OP).best
    assert best is not None and (best.candidate, best.us, best.measured) == (name, 30.0, True)


def test_budgets_are_what_was_used_of_what_was_allowed(made: Proven) -> None:
    (folder,) = made.run.folders()
    folder.write("gpu.json", json_bytes(Uses((Use("unit-numeric", "t1", 7.5), Use("perf-sweep", "t1", 4.5)))))
    found = {b.name: (b.used, b.most) for b in glance(made.run, OP).budgets}
    assert found == {"rounds": (1, 1), "candidates": (1, 24), "minutes": (2.0 / 60, 60), "GPU s": (12.0, 0)}
    said = "\n".join(lines(glance(made.run, OP)))
    assert "candidates [#...................] 1 of 24" in said and "GPU s      12 (no limit)" in said


def test_the_last_failure_is_one_line_that_no_message_can_break(made: Proven) -> None:
    fail(made, "# a\n", "first")
    fail(made, "# b\n", f"the last\nof {ESC}three\x07 lines " + "x" * 500)
    seen = glance(made.run, OP)
    assert seen.failure.startswith("#3 ") and "compile.raised  the last of" in seen.failure
    assert seen.failure.isprintable() and len(seen.failure) < 200
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, width=300).print(picture(seen))
    assert ESC + "three" not in shown.getvalue() and "\x07" not in shown.getvalue()


def test_markup_in_a_message_is_text(made: Proven) -> None:
    fail(made, "# a\n", "[bold red]not ours[/] [/nothing]")
    shown = io.StringIO()
    Console(file=shown, width=300).print(picture(glance(made.run, OP)))
    assert "[bold red]not ours[/] [/nothing]" in shown.getvalue()


def test_another_shell_sees_the_stage_while_the_run_is_held(made: Proven) -> None:
    watcher = Watcher(quiet=True, run=made.run, op=OP)
    reopened(made)
    with made.run.lock(), watcher:
        watcher(Event("stage", "compile, quick tier", 4))
        watcher(Event("step", "compile.pass", candidate="abc"))
        first = glance(made.run, OP)  # the step came too soon after the stage to be written
        assert first.state == "running" and (first.stage.text, first.stage.total) == ("compile, quick tier", 4)
        watcher._beacon.show(Stage("compile, quick tier", 3, 4, "abc"))  # type: ignore[union-attr]  # given a run
        assert "now      compile, quick tier 3/4  last abc" in lines(glance(made.run, OP))
    assert not (made.run.path / BEACON).exists()
    assert glance(made.run, OP).stage == Stage()


def reopened(made: Proven) -> None:
    with made.run.lock():
        made.run.mark("")


def test_what_a_killed_process_left_is_not_the_stage_of_a_run_that_nobody_holds(made: Proven) -> None:
    Beacon(made.run).show(Stage("round 1", 1, 2))
    assert stage_of(made.run).text == "round 1"
    reopened(made)
    assert glance(made.run, OP).state == "interrupted" and glance(made.run, OP).stage == Stage()


@pytest.mark.parametrize("data", ["", "{", "[]", '{"text": 1}', '{"done": "x"}', "\ufeff"])
def test_a_damaged_note_is_no_note(data: str, made: Proven) -> None:
    (made.run.path / BEACON).write_text(data)
    assert stage_of(made.run) == Stage()


def test_a_note_that_cannot_be_written_does_not_touch_the_run(made: Proven) -> None:
    (made.run.path / BEACON).mkdir()
    beacon = Beacon(made.run)
    beacon.show(Stage("x", 0, 1))
    beacon.out()
    assert beacon.stage.text == "x"


def test_watch_without_a_terminal_says_what_changes_until_the_run_ends(
    made: Proven, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, real = threading.Semaphore(0), glances.glance
    beacon, codes = Beacon(made.run), list[int]()

    def seen(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]  # passed on
        looked.release()
        return found

    monkeypatch.setattr(glances, "glance", seen)

    def look(n: int = 2) -> None:  # the second look began after whatever was done before
        for _ in range(n):
            assert looked.acquire(timeout=60)

    reopened(made)
    watching = threading.Thread(target=lambda: codes.append(called(["watch", made.run.id, "--every", "0.01"])))
    with made.run.lock():
        beacon.show(Stage("ranking", 0, 1))
        watching.start()
        look()
        beacon.show(Stage("full matrix", 0, 4))
        look()
        made.run.finish("staged")
    watching.join(60)
    assert codes == [0]
    out = capsys.readouterr().out
    assert out.index("now      ranking") < out.index("now      full matrix") < out.index("finished: staged")
    assert out.count("12.50 µs") == 1 and "\x1b" not in out  # what stays the same is said once


@pytest.mark.parametrize("name", ["latest", "moe_shared"])
def test_a_run_that_has_ended_is_shown_once(name: str, made: Proven, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["watch", name]) == 0
    assert f"{made.run.id}  finished: staged" in capsys.readouterr().out


def test_json_is_one_document(made: Proven, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["watch", made.run.id, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "kgen.glance/1" and said["funnel"]["compile"] == {"pass": 1}


def test_what_cannot_be_watched_is_one_line(made: Proven, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in ((["watch", "nothing"], "no run"), (["watch", made.run.id, "--every", "0"], "more than 0")):
        capsys.readouterr()
        assert called(arguments) == 2
        said = capsys.readouterr().err.strip()
        assert word in said and "\n" not in said


def on_a_terminal(made: Proven, work: Callable[[Watcher], None]) -> str:
    """What a terminal gets while `work` tells the watcher of events."""
    shown = io.StringIO()
    watcher = Watcher(run=made.run, op=OP)
    watcher.console, watcher.live = Console(file=shown, force_terminal=True, width=150, height=40), True
    with watcher:
        work(watcher)
    return shown.getvalue()


def test_the_live_screen_is_that_of_watch_with_the_bar_of_the_stage(made: Proven) -> None:
    def work(watcher: Watcher) -> None:
        watcher(Event("stage", "compile, quick tier", 2))
        watcher(Event("step", "compile.pass", candidate="abc"))

    said = on_a_terminal(made, work)
    assert "funnel   1 proposed" in said and "candidates [#" in said and "compile, quick tier" in said and "1/2" in said


def test_a_damaged_run_folder_does_not_stop_the_screen(made: Proven) -> None:
    def work(watcher: Watcher) -> None:
        (made.run.path / "run.json").write_text("{")
        watcher._picture = (0.0, "as it was")
        watcher(Event("stage", "compile, quick tier", 2))

    said = on_a_terminal(made, work)
    assert "as it was" in said and "Traceback" not in said
