"""What a run may spend and has spent: budgets are never exceeded, whatever happens, and the accounts add up."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import openai_server as srv
from support.loops import OP, called, source
from support.requests import request
from support.sets import WIN, fill, make_case

from kgen.loop import cpu
from kgen.loop.cpu import cpu_seconds
from kgen.loop.estimate import estimate
from kgen.loop.intake import judge
from kgen.loop.ledger import account
from kgen.loop.rounds import Cost, Round, write_failed, write_round
from kgen.loop.session import begin
from kgen.loop.settings import Settings
from kgen.loop.spending import Ledger, Use, read_uses
from kgen.proposers import Budget, ProposerError, ProposerFailure
from kgen.proposers.base import Usage
from kgen.proposers.chat import Chat
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.transcript import AnswerRecord, Transcript
from kgen.proposers.wire import characters
from kgen.records import Candidate, GateResult, Origin, Status, sha256_text
from kgen.store import Run, Runs

ASKED = Settings(OP.name, "openai", archs=("sm_90a",), dims=("nano",), bins=(1,), interpret=False)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SECONDS = st.floats(0.01, 50.0)


def made(home: Path, asked: Settings = ASKED, candidates: int = 1) -> Run:
    run = begin(Runs(home), OP, asked.checked(OP), "kgen propose")
    for number in range(candidates):
        run.add(Candidate(OP.name, source(f"c{number}"), Origin("openai")))
    return run


@dataclass
class Clock:
    """Time that passes only when a piece of work says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


# GPU seconds


@FEW
@given(limit=st.floats(0.5, 100.0), pieces=st.lists(st.tuples(st.integers(0, 2), SECONDS), max_size=8))
def test_gpu_seconds_are_never_exceeded_and_a_refusal_says_why(
    limit: float, pieces: list[tuple[int, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = made(tmp_path_factory.mktemp("gpu"))
    clock, longest, spent = Clock(), dict[str, float](), 0.0
    ledger = Ledger(run, replace(ASKED, max_gpu_seconds=limit), clock=clock)
    (folder,) = run.folders()
    for number, (kind, wanted) in enumerate(pieces):
        gate = f"gate-{kind}"
        with ledger.gpu(folder, gate, f"piece {number}", 480.0) as seconds:
            assert ledger.gpu_left >= -1e-9  # also while it runs, with the most that it may take
            taken = min(wanted, seconds)  # its deadline
            clock.now += taken
        if seconds:
            spent += taken
            longest[gate] = max(longest.get(gate, 0.0), taken)
        else:
            assert limit - spent <= longest.get(gate, 0.0) + 1e-6
    assert spent <= limit + 1e-6
    assert ledger.gpu_spent == pytest.approx(spent)
    assert Ledger(run, ASKED).longest == pytest.approx({"quick": 0.0, **longest})  # a resumed run knows them


def test_who_is_killed_in_the_middle_has_spent_the_most_that_the_piece_could_take(tmp_path: Path) -> None:
    run, asked = made(tmp_path), replace(ASKED, max_gpu_seconds=100.0)
    (folder,) = run.folders()
    with suppress(StopIteration):
        killed = Ledger(run, asked, clock=Clock()).gpu(folder, "perf-sweep", "a", 30.0)
        assert killed.__enter__() == 30.0  # and nobody ever leaves it
    assert read_uses(folder) == (Use("perf-sweep", "a", 30.0, done=False),)
    assert Ledger(run, asked).gpu_left == 70.0


def test_a_piece_that_fails_has_spent_its_time(tmp_path: Path) -> None:
    run, clock = made(tmp_path), Clock()
    (folder,) = run.folders()
    ledger = Ledger(run, replace(ASKED, max_gpu_seconds=100.0), clock=clock)
    with pytest.raises(ZeroDivisionError), ledger.gpu(folder, "perf-sweep", "a", 30.0):
        clock.now += 5.0
        raise ZeroDivisionError
    assert ledger.gpu_left == 95.0


def test_pieces_side_by_side_share_the_budget_and_wait_for_what_is_not_used(tmp_path: Path) -> None:
    run, clock, allowed = made(tmp_path, candidates=2), Clock(), list[float]()
    one, two = run.folders()
    ledger = Ledger(run, replace(ASKED, max_gpu_seconds=40.0), clock=clock)

    def second() -> None:
        with ledger.gpu(two, "perf-sweep", "b", 480.0) as seconds:
            allowed.append(seconds)

    thread = threading.Thread(target=second)
    with ledger.gpu(one, "perf-sweep", "a", 480.0) as seconds:
        assert seconds == 40.0
        thread.start()
        clock.now += 15.0
    thread.join(60)
    assert allowed == [25.0]


def test_without_a_limit_no_piece_is_refused(tmp_path: Path) -> None:
    run, clock = made(tmp_path), Clock()
    (folder,) = run.folders()
    ledger = Ledger(run, ASKED, clock=clock)
    for number in range(3):
        with ledger.gpu(folder, "perf-sweep", str(number), 480.0) as seconds:
            assert seconds == 480.0
            clock.now += 480.0
    assert ledger.gpu_spent == 1440.0


# wall time


@given(took=st.lists(SECONDS, max_size=5), left=st.floats(-5.0, 60.0))
def test_nothing_is_begun_that_the_longest_one_of_its_kind_would_not_have_fitted_into(
    took: list[float], left: float
) -> None:
    ledger = object.__new__(Ledger)
    ledger.longest = {}
    for seconds in took:
        ledger.took("quick", seconds)
    refused = ledger.time_for("quick", left)
    assert bool(refused) == (left <= 0 or left < max(took, default=0.0))
    assert "\n" not in refused


@pytest.mark.parametrize(
    ("left", "gpu", "spent", "refused"),
    [(31.0, False, 0.0, ""), (29.0, False, 0.0, "29 s"), (99.0, True, 55.0, "5 GPU-seconds"), (99.0, True, 45.0, "")],
)
def test_no_round_is_begun_that_would_have_to_stop_in_the_middle(
    left: float, gpu: bool, spent: float, refused: str, tmp_path: Path
) -> None:
    run, clock = made(tmp_path), Clock()
    (folder,) = run.folders()
    ledger = Ledger(run, replace(ASKED, max_gpu_seconds=60.0), clock=clock)
    ledger.took("propose", 20.0)
    ledger.took("quick", 10.0)
    for part in (10.0, spent - 10.0) if spent else ():
        with ledger.gpu(folder, "unit-numeric", str(part), 480.0):
            clock.now += part
    ledger.longest["unit-numeric"] = 10.0
    said = ledger.round_refused(left, gpu)
    assert (refused in said) if refused else said == ""


# money


@dataclass
class Biller:
    """An endpoint that charges for every request that it worked on, also where the answer never arrives."""

    prices: tuple[float, float]
    moods: list[tuple[str, float]]  # what it does, and how much of the allowed answer it uses
    billed: float = 0.0
    codes: Any = field(default_factory=lambda: iter(range(1000)))

    def __call__(self, handler: srv.Handler) -> None:
        body = handler.state.seen[-1].body
        mood, part = self.moods.pop(0) if self.moods else ("ok", 0.5)
        prompt = characters(body["messages"]) // 3
        answered = int(body["max_tokens"] * part)
        usage = {"prompt_tokens": prompt, "completion_tokens": answered}
        if mood == "busy":
            return srv.status(503)(handler)
        self.billed += (prompt * self.prices[0] + answered * self.prices[1]) / 1e6
        text = "no code" if mood == "prose" else srv.answer(f"x = {next(self.codes)}\n{srv.CODE}")
        return srv.cut_body()(handler) if mood == "cut" else srv.ok(text, usage=usage)(handler)


MOODS = st.lists(st.tuples(st.sampled_from(["ok", "prose", "cut", "busy"]), st.floats(0, 1)), max_size=8)


@settings(FEW, max_examples=12)
@given(budget=st.floats(0.001, 1.5), prices=st.tuples(st.floats(0, 20), st.floats(0.1, 60)), moods=MOODS)
def test_an_endpoint_is_never_owed_more_than_the_limit(
    budget: float, prices: tuple[float, float], moods: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    biller = Biller(prices, list(moods))
    with srv.serving(biller) as server:
        where = Endpoint("k" * 12, server.url, "m", max_tokens=8000, price_in=prices[0], price_out=prices[1])
        asker = OpenAIProposer(chat=Chat(where, sleep=lambda _: None))
        try:
            run = tmp_path_factory.mktemp("money")
            usage = asker.propose(request(run, count=4, budget=Budget(cost_usd=budget))).usage
        except ProposerFailure as failure:
            usage = failure.usage
    assert biller.billed <= budget + 1e-9
    assert (usage.cost_usd or 0.0) >= biller.billed - 1e-9  # and what was owed is on record


def test_what_failed_rounds_cost_counts_towards_the_limit(tmp_path: Path) -> None:
    run = made(tmp_path)
    write_round(run, Round(1, (), usage=vars(Usage(cost_usd=0.5))))
    write_failed(run, 2, ProposerError("gone", Usage(attempts=4, lost=4, cost_usd=0.25)))
    assert Ledger(run, ASKED).spent_usd == pytest.approx(0.75)


# CPU seconds

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
NESTED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(seconds=0.4)!r}], check=True)\n"


@pytest.mark.parametrize("script", [BURN.format(seconds=0.4), NESTED], ids=["child", "grandchild"])
def test_cpu_seconds_of_processes_below_count_while_they_run_and_after(script: str) -> None:
    before = cpu_seconds()
    command = [sys.executable, "-c", f"{script}\nprint('done', flush=True)\ninput()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "done\n"
    running = cpu_seconds() - before
    child.communicate("\n")
    assert running > 0.35 and cpu_seconds() - before > 0.35


def test_processes_below_are_the_same_whether_told_or_looked_up() -> None:
    words = ["sh", "-c", "sleep 60 & echo $!; wait"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    told, looked_up = (set(find(os.getpid())) for find in (cpu._told, cpu._looked_up))
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert {child.pid, grandchild} <= told == looked_up


# accounts


def answer(number: int, prompt: str, outcome: str, usage: Usage) -> AnswerRecord:
    text = f"answer {number}"
    hashes = {
        "templates_sha256": "t",
        "prompt_sha256": prompt,
        "question_sha256": text,
        "answer_sha256": sha256_text(text),
    }
    return AnswerRecord("openai", "m", "e", "propose.md", finish="stop", outcome=outcome, usage=usage, **hashes)


@pytest.fixture
def spent(tmp_path: Path) -> Run:
    """Two candidates; the first took two answers, one request failed; compiled side by side, one judged on a GPU."""
    run = made(tmp_path / "runs", candidates=2)
    one, two = run.folders()
    kept = Transcript(run.path)
    first, second = (f.candidate().id for f in (one, two))
    answers = [
        ("a", "answer.no-code", 100, 0.01),
        ("a", f"candidate {first}", 200, 0.02),
        ("b", f"candidate {second}", 50, 0.005),
    ]
    for number, (prompt, outcome, tokens, usd) in enumerate(answers):
        usage = Usage(tokens, tokens // 10, 1, 2.0, usd, cached_tokens=tokens // 2, reasoning_tokens=5)
        kept.keep(answer(number, prompt, outcome, usage), f"answer {number}")
    failed = Usage(attempts=3, lost=1, cost_usd=0.1)
    write_failed(run, 1, ProposerError("gone", failed))
    for folder, seconds in ((one, 30.0), (two, 10.0)):
        folder.write_result(GateResult("compile", Status.PASS, "compile.pass", "", {}, seconds))
        judge(folder)
    clock = Clock()
    with Ledger(run, ASKED, clock=clock).gpu(one, "perf-sweep", "a", 480.0):
        clock.now += 7.0
    costs = (Cost("propose", 7.0, 0.5), Cost("compile", 32.0, 20.0, {one.path.name: 30.0, two.path.name: 10.0}))
    usage = Usage(350, 35, 3, 6.0, 0.035, cached_tokens=175, reasoning_tokens=15)
    write_round(
        run, Round(1, (one.path.name, two.path.name), usage=vars(usage), seconds=40.0, judged=True, costs=costs)
    )
    return run


def test_the_account_of_a_run_by_candidate(spent: Run) -> None:
    lines = {line.candidate: line for line in account(spent).by_candidate()}
    one, two = (f.path.name for f in spent.folders())
    tokens = {name: (line.usage.prompt_tokens, line.usage.attempts) for name, line in lines.items()}
    assert tokens == {one: (300, 2), two: (50, 1), "": (0, 3)}  # the failed requests are nobody's
    usd = {name: line.usage.cost_usd for name, line in lines.items()}
    assert usd == pytest.approx({one: 0.03, two: 0.005, "": 0.1})
    assert {name: line.cpu_s for name, line in lines.items()} == pytest.approx({one: 15.0, two: 5.0, "": 0.5})
    assert {name: line.gpu_s for name, line in lines.items()} == {one: 7.0, two: 0.0, "": 0.0}
    assert lines[one].usage.cached_tokens == 150 and lines[one].usage.reasoning_tokens == 10
    assert lines[""].usage.lost == 1


def test_the_account_of_a_run_by_gate_and_in_all(spent: Run) -> None:
    found = account(spent)
    gates = {line.gate: (line.wall_s, line.cpu_s, line.gpu_s) for line in found.by_gate()}
    assert gates == {"propose": (7.0, 0.5, 0.0), "compile": (40.0, 20.0, 0.0), "perf-sweep": (0.0, 0.0, 7.0)}
    assert list(gates) == ["propose", "compile", "perf-sweep"]
    total = found.total
    assert (total.wall_s, total.cpu_s, total.gpu_s) == (40.0, 20.5, 7.0)
    assert total.usage.cost_usd == pytest.approx(0.135) and total.usage.attempts == 6


def test_a_promoted_kernel_carries_what_its_run_cost(spent: Run, tmp_path: Path) -> None:
    mine = [make_case(f"kernel {tokens}", {tokens: WIN}, run=spent.id) for tokens in (1, 8)]
    fill(tmp_path / "set", *mine, make_case("kernel 16", {16: WIN}, run="another"))
    lines = account(spent).promoted(tmp_path / "set")
    assert [line.candidate for line in lines] == [case.candidate.id for case in mine]
    for line in lines:  # half of 7 GPU-seconds, of 20.5 CPU-seconds, of 0.135 USD
        assert (line.gpu_s, line.cpu_s, line.usage.cost_usd) == pytest.approx((3.5, 10.25, 0.0675))


def test_the_command_shows_what_the_account_says(spent: Run, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert called(["runs", "cost", str(spent.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["total"]["usage"]["cost_usd"] == pytest.approx(0.135) and shown["total"]["gpu_s"] == 7.0
    assert called(["runs", "cost", str(spent.path)]) == 0
    words = capsys.readouterr().out
    assert "0.1350" in words and "perf-sweep" in words and spent.folders()[0].path.name in words


# estimates


def test_an_estimate_says_what_is_not_known(tmp_path: Path) -> None:
    said = estimate(Runs(tmp_path), OP, ASKED.checked(OP), Endpoint("k" * 12, model="m"))
    assert "time unknown" in said and "price unknown" in said and "\n" not in said


def test_an_estimate_is_made_of_an_earlier_run_and_the_price(spent: Run) -> None:
    asked = replace(ASKED.checked(OP), candidates=6, minutes=60.0)
    where = Endpoint("k" * 12, model="m", max_tokens=1000, price_in=0.0, price_out=50.0)
    said = estimate(Runs(spent.path.parent), OP, asked, where)
    assert "about 2.0 min" in said  # two candidates took 40 s, six take 120
    assert "compile 20 s" in said and "21 GPU-seconds" in said
    assert "at most 0.0500 USD a question, 0.30 USD in all" in said
