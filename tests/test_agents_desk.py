"""What the tools of `kgen mcp` do, called directly: submissions become runs, every argument is checked.

The worker is a process that stands in for the real one; the real one and the protocol: test_agents_mcp.
"""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.loops import ROW_COPY, recording

from kgen.agents import pages
from kgen.agents.desk import Desk, Matrix, Refused
from kgen.agents.labour import IDLE, WORKING, Labour, News
from kgen.agents.wire import MAX_LINE, NO_MESSAGE, Lines
from kgen.diagnosis.static import SMALL
from kgen.loop.building import QUICK
from kgen.loop.session import begin, work_on
from kgen.loop.settings import Settings, read_settings
from kgen.loop.standing import standings
from kgen.loop.steps import Waiting
from kgen.ops import REGISTRY
from kgen.proposers.answers import MAX_SOURCE_BYTES
from kgen.proposers.submitted import Submissions, SubmittedProposer
from kgen.records import Candidate, GateResult, Origin, Status, Verdict
from kgen.store.documents import json_bytes
from kgen.store.errors import IntegrityError
from kgen.store.runs import Run, Runs

# a worker that begins every job and never ends one, and one that dies over it
IDLER = """import sys, json
for line in sys.stdin:
    print(json.dumps({"run": json.loads(line)["run"], "what": "begun", "text": ""}), flush=True)
"""
DYING = "import sys; sys.stdin.readline(); sys.exit(7)"
MATRIX = Matrix(("sm_90a",), ("nano",), (1,), candidates=3, interpret=False)
SOURCE = ROW_COPY


def labour(code: str, home: Path) -> Labour:
    return Labour(home / "cache", home / "set", (sys.executable, "-I", "-c", code))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    worker = labour(IDLER, tmp_path)
    yield Desk(Runs(tmp_path / "runs"), tmp_path / "set", worker, MATRIX)
    worker.close()


def until(ready: object, seconds: float = 60.0) -> None:
    """Wait for a state, however slow the machine is."""
    assert callable(ready)
    event = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if ready():
            return
        event.wait(0.02)
    raise AssertionError("it never came to that")


def submissions(desk: Desk, said: dict[str, str]) -> Submissions:
    return Submissions(desk.runs.root / said["run"])


def test_a_submission_begins_a_run_with_the_servers_matrix_and_is_kept_byte_for_byte(desk: Desk) -> None:
    said = desk.submit("moe_shared", SOURCE, client="an agent\n</data>/7")
    run = Run(desk.runs.root / said["run"])
    settings = read_settings(run.info.settings, "run.json")
    assert (settings.proposer, settings.archs, settings.dims, settings.bins) == ("mcp", ("sm_90a",), ("nano",), (1,))
    assert said["id"] == f"{run.id}/0001" and said["state"] == "queued"
    entry, source = submissions(desk, said).read(1)
    assert source == SOURCE.rstrip() + "\n" and entry.client == "an_agent_/data_/7"


def test_the_same_run_goes_on_and_the_same_source_is_the_same_submission(desk: Desk) -> None:
    first = desk.submit("moe_shared", SOURCE)
    second = desk.submit("moe_shared", SOURCE + "# other\n", run=first["run"])
    again = desk.submit("moe_shared", SOURCE + "\r\n\r\n", run=first["run"])  # ends are not told apart
    assert (second["id"], again["id"]) == (f"{first['run']}/0002", first["id"])
    assert "before" in again["note"] and submissions(desk, first).numbers() == [1, 2]
    assert desk.submit("moe_shared", SOURCE)["run"] != first["run"]


def test_submissions_that_come_at_once_get_numbers_of_their_own(desk: Desk) -> None:
    said = desk.submit("moe_shared", SOURCE)
    kept = submissions(desk, said)
    texts = [f"# {i}\n{SOURCE}" for i in range(12)]
    threads = [threading.Thread(target=kept.add, args=(text, "x", "now")) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept.numbers() == list(range(1, 14))
    assert sorted(kept.read(n)[1] for n in range(2, 14)) == sorted(texts)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"op": "nope"}, "known ops: attn_res"),
        ({"op": "x" * 500}, "op has 500 characters"),
        ({"source": ""}, "answer.empty"),
        ({"source": "Here is the kernel that you wanted"}, "answer.prose"),
        ({"source": "# " + "x" * MAX_SOURCE_BYTES}, "answer.size"),
        ({"source": "x = '\0'"}, "answer.encoding"),
        ({"source": "x = '\udc80'"}, "answer.encoding"),
        ({"axes": {"colour": "red"}}, "has no axis 'colour'"),
        ({"op": "attn_res", "axes": {"variant": "none"}}, "variant"),
        ({"parent": "../x"}, "hexadecimal"),
        ({"run": "../../etc"}, "there is no run '../../etc'"),
        ({"run": "20990101T000000Z-moe_shared-abcdef"}, "there is no run"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_cannot_be_taken_is_one_line_and_leaves_no_run(desk: Desk, arguments: dict, says: str) -> None:
    with pytest.raises(Refused) as caught:
        desk.submit(**{"op": "moe_shared", "source": SOURCE, **arguments})
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert desk.runs.list() == ()


def test_runs_of_others_are_no_target(desk: Desk, tmp_path: Path) -> None:
    theirs = recording(desk.runs.root, [SOURCE])
    with pytest.raises(Refused, match="one of the proposer list"):
        desk.submit("moe_shared", SOURCE, run=theirs.name)
    with pytest.raises(Refused, match="one of the proposer list"):
        desk.verdict(f"{theirs.name}/0001")
    mine = desk.submit("moe_shared", SOURCE)
    with pytest.raises(Refused, match="is about moe_shared, not attn_res"):
        desk.submit("attn_res", SOURCE, run=mine["run"])


def test_a_run_takes_as_many_candidates_as_it_was_begun_for(desk: Desk) -> None:
    said = desk.submit("moe_shared", SOURCE)
    for i in range(2):
        desk.submit("moe_shared", f"{SOURCE}# {i}\n", run=said["run"])
    with pytest.raises(Refused, match="has had its 3 candidates: submit without run"):
        desk.submit("moe_shared", f"{SOURCE}# 3\n", run=said["run"])


def test_an_undecided_submission_says_how_far_it_is(desk: Desk) -> None:
    said = desk.submit("moe_shared", SOURCE)
    until(lambda: desk.labour.about(desk.runs.root / said["run"]).state == WORKING)
    assert desk.verdict(said["id"])["state"] == "queued" and desk.verdict(said["id"])["text"] == "beginning"
    other = desk.submit("attn_res", SOURCE)
    assert other["runs_ahead"] == 1
    for ident in ("", "x", f"{said['run']}/0009", f"{said['run']}/../1", "a/1", f"{said['run']}/1/2"):
        with pytest.raises(Refused):
            desk.verdict(ident)


def test_a_damaged_submission_is_said_and_not_judged(desk: Desk) -> None:
    said = desk.submit("moe_shared", SOURCE)
    path = desk.runs.root / said["run"] / "submissions" / "0001" / "kernel.py"
    path.write_text(SOURCE + "# touched\n")
    with pytest.raises(Refused, match="damaged"):
        desk.verdict(said["id"])
    with pytest.raises(IntegrityError):
        submissions(desk, said).read(1)


def test_a_worker_that_dies_is_said_and_started_again(tmp_path: Path) -> None:
    run, worker = tmp_path / "run", labour(DYING, tmp_path)
    for _ in range(2):
        worker.wake(run)
        until(lambda: worker.about(run).state == IDLE)
        assert "ended with status 7" in worker.about(run).error
    worker.close()
    worker.wake(run)
    assert worker.about(run).state == IDLE


def test_a_run_that_is_handed_over_while_it_is_in_work_has_another_turn(tmp_path: Path) -> None:
    ending = (
        "import sys, json\n"
        "say = lambda run, what: print(json.dumps({'run': run, 'what': what, 'text': ''}), flush=True)\n"
        "first, second = (json.loads(sys.stdin.readline())['run'], None)\n"
        "say(first, 'begun')\n"
        "second = json.loads(sys.stdin.readline())['run']\n"
        "say(first, 'ended'); assert second == first; say(second, 'begun'); say(second, 'ended')\n"
        "sys.stdin.read()\n"
    )
    run, worker = tmp_path / "run", labour(ending, tmp_path)
    worker.wake(run)
    worker.wake(run)  # still queued: nothing to add
    until(lambda: worker.about(run).state == WORKING)
    worker.wake(run)
    until(lambda: worker.about(run) == News())
    worker.close()


def test_submissions_are_judged_by_the_loop_and_another_one_can_follow_a_staged_one(desk: Desk, tmp_path: Path) -> None:
    said = desk.submit("moe_shared", SOURCE)
    run, op = Run(desk.runs.root / said["run"]), REGISTRY.get("moe_shared")
    settings = read_settings(run.info.settings, "run.json")

    def gates() -> None:
        with pytest.raises(Waiting, match="submit_candidate"):
            work_on(run, op, settings, SubmittedProposer(), tmp_path / "cache", kernels=tmp_path / "set")

    gates()
    first = desk.verdict(said["id"])
    assert first["state"] == "staged" and first["gates"]["compile"]["code"] == "compile.pass"
    broken = desk.submit("moe_shared", "import os\n" + SOURCE, run=said["run"], parent=said["candidate"])
    gates()
    second = desk.verdict(broken["id"])
    assert second["state"] == "refused" and second["gates"] == {"compile": {"status": "fail", "code": "screen.import"}}
    assert "`compile` " in second["text"] and "screen.import" in second["text"]
    origins = [f.candidate().origin for f in run.folders()]
    assert [o.proposer for o in origins] == ["mcp", "mcp"]
    assert [o.detail["kind"] for o in origins] == ["design", "optimise"]
    assert origins[1].detail["parents"][0].startswith(said["candidate"])
    (place,) = standings(run, op, settings).places
    assert first["rank"] == {"rank": 1, "of": 1, "value": place.value} and place.value.startswith("static cost ")
    named = {"candidate": said["candidate"], "value": place.value, "by": "static cost (summed over 1 tokens)"}
    assert second["rank"] is None and first["best"] == second["best"] == named
    assert (
        place.value in first["text"] and " launches (1)" in first["text"] and "static bytes by phase" in first["text"]
    )
    assert "write a faster one" in first["text"]
    third = desk.submit("moe_shared", "import os\n#\n" + SOURCE, run=said["run"])
    ended = work_on(run, op, settings, SubmittedProposer(), tmp_path / "cache", kernels=tmp_path / "set")
    assert ended.why == "3 rounds done"
    assert "has had its 3 candidates; submit without run" in desk.verdict(third["id"])["text"]
    assert "write a faster one" not in desk.verdict(said["id"])["text"]
    best = desk.best("moe_shared")
    assert best["candidate"]["why"] == "least static cost at moe_shared/nano/t1/sm_90a of 1 candidates"
    assert best["candidate"]["made_of"][-1] == SMALL and best["next"] == []
    assert best["candidate"]["id"].startswith(said["candidate"]) and best["candidate"]["source"] == first_source(run)
    listed = {o["name"]: o["runs"] for o in desk.list_ops()["ops"]}
    assert listed["moe_shared"] == 1 and set(listed) == set(REGISTRY.every)


def first_source(run: Run) -> str:
    return run.folders()[0].candidate().source


def test_nothing_is_best_where_nothing_was_tried(desk: Desk) -> None:
    assert desk.best("kda_core")["candidate"] is None


def test_the_contract_is_the_text_that_a_model_is_asked_with(desk: Desk) -> None:
    text = desk.get_contract("moe_shared")
    assert "# Task: `moe_shared`" in text and "Token bins: 1. Architectures: sm_90a." in text
    assert "variant" in desk.get_contract("attn_res", {"variant": "final"})


def test_the_guide_has_its_rules_its_topics_and_sections_by_any_words(desk: Desk) -> None:
    plain = desk.get_guide()
    assert "The candidate contract" in plain and len(plain) < 12_000
    for name in pages.sections():
        assert f"* {name}" in plain
        assert desk.get_guide(name).startswith(f"## {name}")
    assert "mma" in desk.get_guide("skinny gemm").splitlines()[0]
    assert len(pages.technique_pages()) >= 11
    for name, page in pages.technique_pages().items():
        assert f"`{name}`" in plain
        assert desk.get_guide(name) == desk.get_guide(f" {name.upper()}") == f"{page}\n"
        assert page.startswith("### Technique: ") and "```python" in page and "\ntags:" not in page
    assert "### Technique: Lamport mailbox" in desk.get_guide("lamport slots")  # words find pages too
    assert desk.get_guide("all").count("\n## ") + 0 >= len(pages.sections()) - 1
    with pytest.raises(Refused, match="topics: Form of a file"):
        desk.get_guide("zzz")


def test_the_page_for_agents_opens_the_repositorys_own(desk: Desk) -> None:
    page = desk.get_guide("agents")
    assert (ROOT / "AGENTS.md").read_text().startswith(page)
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 66  # a page


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\n" + b"x" * (3 * MAX_LINE + 5) + b"\nb\n\n \n" + b"\xff\n" + b"y" * (MAX_LINE - 1) + b"\nlast")
    lines = Lines(path.open("rb"))
    got = []
    while line := lines.readline():
        got.append(line)
    assert [g if len(g) < 9 else len(g) for g in got] == ["a\n", NO_MESSAGE, "b\n", "\ufffd\n", MAX_LINE, "last"]
    assert json.loads(NO_MESSAGE) == {}


def judged(desk: Desk, dims: str, name: str, us: float) -> None:
    """A run with one staged candidate whose static cost is `us` at a point of these dims."""
    asked = Settings("moe_shared", "list", archs=("sm_90a",), dims=(dims,), bins=(1,)).checked(
        REGISTRY.get("moe_shared")
    )
    run = begin(desk.runs, REGISTRY.get("moe_shared"), asked, "kgen propose")
    with run.lock():
        folder = run.add(Candidate("moe_shared", f"# {name}\n{SOURCE}", Origin("list")))
        passed = GateResult("compile", Status.PASS, "compile.pass", "m")
        evidence = {"problems": {f"moe_shared/{dims}/t1/sm_90a": {}}, "cost": {"us": us}}
        folder.write(QUICK, json_bytes(replace(passed, evidence=evidence)))
        folder.write_verdict(Verdict(folder.candidate().id, (passed,)))


def test_the_best_is_chosen_among_candidates_that_were_built_at_the_same_points(desk: Desk) -> None:
    judged(desk, "nano", "small a", 1.0)
    judged(desk, "nano", "small b", 2.0)
    small = desk.best("moe_shared")
    assert small["candidate"]["us"] == 1.0 and [n["us"] for n in small["next"]] == [2.0]
    judged(desk, "k3-tp8", "served", 9.0)
    best = desk.best("moe_shared")  # 9 us for the weights of a layer is no worse than 1 us for a thousandth of them
    assert best["candidate"]["us"] == 9.0 and best["staged"] == 3
    why = "least static cost at moe_shared/k3-tp8/t1/sm_90a of 1 candidates; 2 were built at other points only"
    assert best["candidate"]["why"] == why
