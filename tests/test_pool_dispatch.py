"""The pool without a cluster: what comes back is what would have been made here, and whatever a node does is no
candidate's failure. The nodes are real workers of this process, with caches of their own."""

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.builds import shared
from support.loops import OP, fails_at
from support.pools import HereNode, HereNodes, here
from test_numeric_ptx import FAULTS, GOOD

from kgen.gates.compile import CompileGate, CompileReport
from kgen.pool.choose import choose
from kgen.pool.dispatch import TRIES, Answered, Dispatcher, PoolError
from kgen.pool.local import LocalExecutor
from kgen.pool.remote import RemoteExecutor
from kgen.pool.tasks import Task, build_task
from kgen.pool.worker import Answer, Worker, forget_secrets
from kgen.records import Candidate, Origin, Status, sha256_bytes, to_json

NANO = OP.problem("nano", 4, "sm_90a")
CANDIDATES = {"good": GOOD, "broken": fails_at(4), "fault": GOOD.replace(*FAULTS["leaves a token out"][:2])}


def candidate(text: str) -> Candidate:
    return Candidate(OP.name, text, Origin("test"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[HereNode]:
    """One worker for all tests: its builds are made once."""
    made = here(folder, "one")
    yield made
    made.worker.close()


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[CompileGate]:
    with CompileGate(OP, folder / "local", shared()) as gate:
        yield gate


def remote(*nodes: HereNode) -> tuple[RemoteExecutor, HereNodes, list[str]]:
    found, said = HereNodes([replace(n, asked=[]) for n in nodes]), list[str]()
    return RemoteExecutor(found, "here", said.append), found, said


def compiled(executor: RemoteExecutor, cache: Path, text: str, defect: str = "") -> CompileReport:
    return executor.gate(OP, cache).run(candidate(text), [NANO], defect)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("defect", ["", "tile_scale"])
def test_a_build_of_a_node_is_the_build_of_here(
    name: str, defect: str, node: HereNode, local: CompileGate, tmp_path: Path
) -> None:
    executor, found, _ = remote(node)
    mine, theirs = (
        local.run(candidate(CANDIDATES[name]), [NANO], defect),
        compiled(executor, tmp_path, CANDIDATES[name], defect),
    )
    said = [
        (r.result.status, r.result.code, r.result.message.replace("1 of them", "0 of them")) for r in (mine, theirs)
    ]
    assert said[0] == said[1]
    for a, b in zip(mine.artefacts, theirs.artefacts, strict=True):
        code = [[k.code_sha256 for k in artefact.record.kernels] for artefact in (a, b)]
        assert code[0] == code[1] and a.record.launches == b.record.launches
        assert b.object.is_relative_to(tmp_path) and sha256_bytes(b.object.read_bytes()) == b.record.object_sha256
    asked = len(found.nodes[0].asked)
    again = compiled(executor, tmp_path, CANDIDATES[name], defect)
    assert len(found.nodes[0].asked) == asked == 1, "what the cache has is not asked for again"
    assert again.result.code == theirs.result.code


GOOD_TOO = pytest.param("good", "numeric.ptx_pass", marks=pytest.mark.deep)  # as in test_pool_ray.py


@pytest.mark.parametrize(("name", "code"), [GOOD_TOO, ("fault", "numeric.unwritten")])
def test_the_interpreter_of_a_node_judges_and_is_asked_once(
    name: str, code: str, node: HereNode, local: CompileGate, tmp_path: Path
) -> None:
    executor, found, _ = remote(node)
    (artefact,) = local.run(candidate(CANDIDATES[name]), [NANO]).artefacts
    result = executor.interpret(OP, [artefact], tmp_path, 300.0)
    assert (result.code, result.passed, result.interpreted) == (code, name == "good", True)
    again = executor.interpret(OP, [artefact], tmp_path, 300.0)
    assert again == result and len(found.nodes[0].asked) == 1


def test_work_lost_with_a_node_is_done_by_another(node: HereNode, folder: Path, tmp_path: Path) -> None:
    dying = here(folder, "dying", slots=8, dies=1)
    executor, found, said = remote(node, dying)
    report = compiled(executor, tmp_path, GOOD)
    assert report.result.passed
    assert found.gone == [("dying", "its power was cut")] and [n.name for n in found.nodes] == ["one"]
    assert executor.dispatcher.again == 1 and executor.dispatcher.done == {"one": 1}
    assert len(said) == 1 and "sent out again" in said[0] and "its power was cut" in said[0]


def damaged(message: bytes, blobs: dict[str, bytes]) -> Answer:
    return message, {name: data[:-1] + bytes([data[-1] ^ 1]) for name, data in blobs.items()}


def exchanged(message: bytes, blobs: dict[str, bytes]) -> Answer:
    value = json.loads(message)
    value["record"]["problem"]["tokens"] = 8
    return json.dumps(value).encode(), blobs


def forgotten(message: bytes, blobs: dict[str, bytes]) -> Answer:
    return message, {}


def babbling(message: bytes, blobs: dict[str, bytes]) -> Answer:
    return b"[1, 2", {}


@pytest.mark.parametrize("bend", [damaged, exchanged, forgotten, babbling])
def test_an_answer_that_cannot_be_right_is_not_taken_and_its_node_not_asked_again(
    bend: object, node: HereNode, tmp_path: Path
) -> None:
    lying = replace(node, name="lying", slots=8, bend=bend)  # type: ignore[arg-type]
    executor, found, _ = remote(lying, node)
    report = compiled(executor, tmp_path, GOOD)
    assert report.result.passed and [name for name, _ in found.refused] == ["lying"]
    (artefact,) = report.artefacts
    assert sha256_bytes(artefact.object.read_bytes()) == artefact.record.object_sha256
    assert artefact.record.problem == NANO


def test_a_node_with_another_kgen_is_not_used_and_the_line_says_what_differs(node: HereNode, tmp_path: Path) -> None:
    executor, found, _ = remote(node)
    gate = executor.gate(OP, tmp_path)
    key = dict(to_json(gate.key(candidate(GOOD), NANO)))
    task = build_task(OP, GOOD, NANO, "", {**key, "gate_contract": key["gate_contract"] + 1})
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(executor.dispatcher.result, task, lambda answered: answered.value)
        while not found.refused:
            assert not waiting.done() or waiting.exception() is None
        executor.close(at_once=True)
        with pytest.raises(PoolError):
            waiting.result(60)
    ((name, why),) = found.refused
    assert (
        name == "one" and why == "it has another gate contract than the machine that asks: install the same kgen there"
    )


def test_what_no_node_can_do_is_an_error_and_never_the_candidates_failure(node: HereNode, tmp_path: Path) -> None:
    class Stubborn(HereNodes):
        def lost(self, node: object, why: str) -> None:
            self.gone.append(("again", why))

    nodes = Stubborn([replace(node, dies=99, asked=[])])
    executor = RemoteExecutor(nodes, "here", lambda line: None)
    report = compiled(executor, tmp_path, CANDIDATES["broken"])
    assert (report.result.status, report.result.code) == (Status.ERROR, "compile.builder")
    assert len(nodes.gone) == TRIES and "its power was cut" in report.result.message
    assert "\n" not in report.result.message


def test_the_same_work_asked_for_twice_at_once_is_done_once(folder: Path) -> None:
    go_on, started = threading.Event(), threading.Event()

    class Slow(Worker):
        def do(self, message: bytes, blobs: object) -> Answer:
            started.set()
            go_on.wait(60)
            return b'{"n": 1}', {}

    slow = HereNode("slow", Slow(str(folder / "slow")), slots=4)
    dispatcher = Dispatcher(HereNodes([slow]), lambda line: None)
    task = Task("build", OP.name, {"candidate": "x"}, {}, 60.0)
    kept: list[int] = []

    def take(answered: Answered) -> int:
        kept.append(answered.value["n"])
        return len(kept)

    first = dispatcher.submit(task, take)
    assert started.wait(60)
    second = dispatcher.submit(replace(task, seconds=30.0, body={"hint": 1}), take)  # what decides it is the same
    other = dispatcher.submit(replace(task, under={"candidate": "y"}), take)
    go_on.set()
    assert first.result(60) == second.result(60) and other.result(60) != first.result(60)
    assert len(slow.asked) == len(kept) == 2
    dispatcher.close()


def test_no_more_tasks_are_under_way_on_a_node_than_it_has_slots(folder: Path) -> None:
    most, now, lock, both = [0], [0], threading.Lock(), threading.Barrier(2)

    class Counting(Worker):
        def do(self, message: bytes, blobs: object) -> Answer:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            both.wait(60)  # two at a time must be possible
            with lock:
                now[0] -= 1
            return b"{}", {}

    nodes = HereNodes([HereNode("two", Counting(str(folder / "two")), slots=2)])
    dispatcher = Dispatcher(nodes, lambda line: None)
    tasks = [Task("build", OP.name, {"number": n}, {}, 60.0) for n in range(8)]
    for future in [dispatcher.submit(task, lambda answered: answered.value) for task in tasks]:
        assert future.result(60) == {}
    dispatcher.close()
    assert most == [2]


def test_a_task_for_a_gpu_goes_to_no_other_node(node: HereNode) -> None:
    executor, found, _ = remote(node, replace(node, name="gpu", gpu="sm_90a"))
    assert executor.archs() == ("sm_90a",)
    dispatcher = executor.dispatcher
    waiting = dispatcher.submit(Task("build", OP.name, {}, {}, 60.0, gpu="sm_103a"), lambda answered: 0)
    with pytest.raises(PoolError):
        executor.close(at_once=True)
        waiting.result(60)
    assert [n.asked for n in found.nodes] == [[], []]


def test_a_worker_keeps_no_secret_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"OPENAI_API_KEY": "s", "AWS_SECRET_ACCESS_KEY": "s", "SOME_TOKEN": "s"}
    monkeypatch.setattr(os, "environ", {**os.environ, **secret, "RAY_JOB_ID": "1"})
    forget_secrets()
    assert "RAY_JOB_ID" in os.environ and "PATH" in os.environ and not set(os.environ) & set(secret)


@pytest.mark.parametrize(
    ("name", "address", "env", "said"),
    [
        ("mpi", "", {}, "unknown executor 'mpi'; known: local, ray"),
        ("local", "127.0.0.1:1", {}, "--ray-address goes with --executor ray"),
        ("", "", {"KGEN_EXECUTOR": "slurm"}, "unknown executor 'slurm'; known: local, ray"),
    ],
)
def test_what_is_asked_for_wrongly_is_said_in_one_line(name: str, address: str, env: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match="executor") as error:
        choose(name, address, env=env)
    assert str(error.value) == said


def test_this_machine_is_the_default() -> None:
    executor = choose(env={})
    assert isinstance(executor, LocalExecutor) and executor.width == os.cpu_count()
    assert choose(workers=3, env={}).width == 3
