"""A run on a real Ray cluster of this machine, of a head and two nodes, one of which is killed in the middle: the same
verdicts as without Ray. Nothing here waits for a time: only for states."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.loops import FORBIDDEN, OP, ListProposer, fails_at
from test_numeric_ptx import FAULTS, GOOD

from kgen.loop.session import begin, work_on
from kgen.loop.settings import Settings
from kgen.pool.base import Executor
from kgen.pool.choose import choose
from kgen.pool.local import LocalExecutor
from kgen.pool.ray_nodes import NoRay
from kgen.pool.remote import RemoteExecutor
from kgen.store import Run, Runs

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kgen[ray]'")

pytestmark = pytest.mark.timeout(900)
STORE = 80 << 20  # bytes of an object store: Ray's least
LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a name of the outer address
SECRET = "sk-of-the-driver-only"
SOURCES = [
    GOOD,
    GOOD.replace(*FAULTS["leaves a token out"][:2]),
    FORBIDDEN,
    fails_at(1),
    GOOD + "\n# another\n",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head that builds nothing, a node with a slot and a GPU that is none, and a node with a slot."""
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("nodes")
    common = {"object_store_memory": STORE, "node_ip_address": LOOPBACK}
    made = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": 0, "include_dashboard": False})
    try:
        for name, gpus in (("a", 1), ("b", 0)):
            made.add_node(num_cpus=1, num_gpus=gpus, env_vars={"KGEN_CACHE": str(folder / name)}, **common)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def judged(folder: Path, executor: Executor) -> tuple[Run, Mapping[str, list[tuple[str, str]]]]:
    """A run over SOURCES, and the (status, code) of every gate by candidate."""
    settings = Settings(OP.name, "list", candidates=9, archs=("sm_90a",), dims=("nano",), bins=(1,), finalists=9)
    run = begin(Runs(folder / "runs"), OP, settings.checked(OP), "kgen propose")
    work_on(run, OP, settings.checked(OP), ListProposer(SOURCES), folder / "cache", executor=executor)
    verdicts = {f.path.name: f.verdict() for f in run.folders()}
    return run, {n: [(r.status.value, r.code) for r in v.results] for n, v in verdicts.items() if v is not None}


def children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for word in words for found in (int(word), *children(int(word)))]


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def kill_while_it_works(executor: RemoteExecutor, cluster: Any, running: Future[Any]) -> str:
    """Wait until a node has work; freeze its processes; if the work is then still there, the node dies with it."""
    nodes = {n["NodeID"]: n for n in ray.nodes()}
    while True:
        until(lambda: bool(executor.dispatcher.busy()) or running.done(), "no node ever got work")
        if running.done():
            running.result()  # raises what ended it
            raise AssertionError("the run ended before a node died")
        name = next(iter(executor.dispatcher.busy()), "")
        machine = next((n for n in nodes.values() if n["NodeID"][:8] in name), None) if name else None
        if machine is None:
            continue
        sockets = {n.raylet_socket_name: n for n in cluster.worker_nodes}
        handle = sockets[machine["RayletSocketName"]]
        raylet = handle.all_processes["raylet"][0].process.pid
        pids = [raylet, *children(raylet)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        dies = name in executor.dispatcher.busy()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if dies else signal.SIGCONT)
        if dies:
            return name


def test_a_run_whose_node_is_killed_in_the_middle_ends_with_the_verdicts_of_this_machine(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    said: list[str] = []
    executor = choose("ray", cluster.address, say=said.append)
    assert isinstance(executor, RemoteExecutor) and executor.provers("") == 2
    assert any("Ray counts a GPU there, and torch sees none" in line for line in said)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(judged, tmp_path / "ray", executor)
        killed = kill_while_it_works(executor, cluster, running)
        run, verdicts = running.result()
    assert executor.dispatcher.again >= 1
    assert any(killed in line and "lost" in line for line in said)
    assert set(executor.dispatcher.done) - {killed}, "the other node went on"
    _, expected = judged(tmp_path / "local", LocalExecutor(2))
    assert verdicts == expected
    assert sorted(codes[-1][1] for codes in verdicts.values()) == sorted(
        ["perf.no_gpu", "numeric.unwritten", "screen.import", "compile.build", "perf.no_gpu"]
    )
    assert [r.isolation for f in run.folders() for r in f.builds()] and not run_key_outside(run, tmp_path)


def run_key_outside(run: Run, folder: Path) -> list[Path]:
    """Files beside the run's own that hold its key."""
    key = run.key()
    raw = key if isinstance(key, bytes) else str(key).encode()
    caches = [p for p in folder.rglob("*") if p.is_file() and run.path not in p.parents]
    return [p for p in caches if raw in p.read_bytes() or raw.hex().encode() in p.read_bytes()]


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    with pytest.raises(NoRay) as error:
        choose("ray", f"{LOOPBACK}:1")
    assert "\n" not in str(error.value) and f"no Ray cluster at {LOOPBACK}:1" in str(error.value)
