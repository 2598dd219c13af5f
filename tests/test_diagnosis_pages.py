"""What was found is said where people and agents look: verdict page, optimise page, report, `runs show --candidate`."""

from pathlib import Path

import pytest
from support.loops import OP, called, recording, source

from kgen.loop.intake import judge
from kgen.proposers.feedback import feedback
from kgen.proposers.mailbox_words import verdict_page
from kgen.records import Candidate, GateResult, Origin, Status, Verdict
from kgen.report import markdown, read
from kgen.store import Runs

CANDIDATE = Candidate(OP.name, source("a"), Origin("t"))
LINES = "\n".join(f"line {n}: import of os is not allowed" for n in (3, 9))
REFUSED = GateResult("compile", Status.FAIL, "screen.import", LINES)
FOUND = "(candidate line 3, 9), 2 times"  # said by the diagnosis only


def test_a_verdict_page_quotes_findings_before_the_gate_s_words() -> None:
    page = verdict_page(CANDIDATE, Verdict(CANDIDATE.id, (REFUSED,)))
    findings, words = page.index('what="findings'), page.index('what="message of gate compile')
    assert findings < page.index(FOUND) < words < page.index("line 9: import of os")


def test_an_error_of_the_tool_is_no_finding_about_the_candidate() -> None:
    error = GateResult("compile", Status.ERROR, "compile.sandbox", "no sandbox here")
    assert "findings" not in verdict_page(CANDIDATE, Verdict(CANDIDATE.id, (error,)))


def test_an_optimise_page_says_findings_about_speed_before_the_facts() -> None:
    launch = {"kernel": "k", "grid": [264, 1, 1], "block": [256, 1, 1], "registers": 64, "smem": 0, "stack_bytes": 16}
    built = GateResult(
        "compile", Status.PASS, "compile.pass", "", {"problems": {"op/d/t8/sm_90a": {"launches": [launch]}}}
    )
    right = GateResult("unit-numeric", Status.SKIP, "numeric.skip", "no GPU")
    said = feedback(((CANDIDATE, Verdict(CANDIDATE.id, (built, right))),))
    assert said.template == "optimise.md"
    assert said.values["best"]["facts"].index("0.50 waves") < said.values["best"]["facts"].index("stack_bytes=16")


def test_report_and_runs_show_say_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "runs"
    run = Runs(root).find(recording(root, [source("a")]).name)
    (folder,) = run.folders()
    folder.write_result(REFUSED)
    judge(folder)
    text = markdown(read(run, OP))
    section = text.split("## What was found\n")[1].split("\n## ")[0]
    assert FOUND in section and section.count("\n* ") == 1
    assert called(["runs", "show", run.id, "--candidate", "1", "--runs", str(root)]) == 0
    out, err = capsys.readouterr()
    assert FOUND in err and FOUND not in out and folder.candidate().source.strip() in out
