"""Nodes of a Ray cluster: one worker a node for builds and interpretation, one a GPU for the gates that need it.

    nodes = RayNodes(address, workers, say)      address "": a cluster of its own on this machine

A watcher thread looks at the cluster every second: new nodes get workers, dead ones are dropped, a worker that died on
a living node is started again RESTARTS times. A node without a sandbox, without the compiler or with another kgen is
not used, and its line says why. The only module that knows Ray (an extra: pip install 'kgen[ray]').
"""

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.gates.runner.child import child_environment
from kgen.pool.dispatch import Broken, Lost, Node, Say
from kgen.pool.tasks import Blobs
from kgen.pool.worker import Worker
from kgen.records import one_line

WATCH_SECONDS = 1.0
HELLO_SECONDS = 180.0  # a worker that has not come up by then is not waited for: its CPUs belong to somebody else
CLOSE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
RESTARTS = 3
INSTALL = "Ray is not installed: pip install 'kgen[ray]'"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class NoRay(Exception):
    """Ray is missing or cannot be reached: one line that names the fix."""


@dataclass(frozen=True)
class RayNode:
    """One worker. `node`: Ray's id of the machine."""

    name: str
    node: str
    slots: int
    gpu: str
    isolation: str
    actor: Any
    ray: Any

    def call(self, message: bytes, blobs: Blobs, seconds: float, stopping: threading.Event) -> tuple[bytes, Blobs]:
        errors = self.ray.exceptions
        try:
            ref = self.actor.do.remote(message, dict(blobs))
            end = time.monotonic() + seconds
            while not self.ray.wait([ref], timeout=WATCH_SECONDS)[0]:
                if stopping.is_set():
                    raise Lost("given up, the pool is closed")
                if time.monotonic() > end:
                    raise Lost(f"no answer for {seconds:.0f} s")
            answer: tuple[bytes, Blobs] = self.ray.get(ref)
        except errors.RayTaskError as error:  # the worker lives: its gate raised
            raise Broken(one_line(str(error.cause or error).strip().splitlines()[-1])) from None
        except errors.RayError as error:
            raise Lost(type(error).__name__) from None
        return answer


class RayNodes:
    """Raises NoRay."""

    def __init__(self, address: str, workers: int, say: Say) -> None:
        """`workers`: slots of a cluster of its own, all cores by default; no more than so many on each node else."""
        self._say, self._workers = say, workers
        self._ray = _started(address, workers)
        self._lock = threading.Lock()
        self._nodes: dict[str, RayNode] = {}
        self._gone: Counter[str] = Counter()  # workers lost, by the machine's id
        self._refused: set[str] = set()
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="kgen-nodes", daemon=True)
        self._watcher.start()
        self._first.wait(HELLO_SECONDS)

    @property
    def refused(self) -> int:
        """Machines that are not used."""
        return len(self._refused)

    def alive(self) -> Sequence[Node]:
        with self._lock:
            return tuple(self._nodes.values())

    def lost(self, node: Node, why: str) -> None:
        assert isinstance(node, RayNode)
        with self._lock:
            if self._nodes.pop(node.name, None) is None:
                return  # another of its tasks has said so
            self._gone[node.node] += 1
        self._say(f"{node.name} is lost ({why})")
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(node.actor)

    def refuse(self, node: Node, why: str) -> None:
        assert isinstance(node, RayNode)
        with self._lock:
            if self._nodes.pop(node.name, None) is None:
                return
            self._refused.add(node.name)
        self._say(f"{node.name} is not used: {why}")

    def close(self, at_once: bool) -> None:
        self._stopping.set()
        self._watcher.join(CLOSE_SECONDS)
        if not at_once:
            refs = [n.actor.close.remote() for n in self._nodes.values()]
            self._ray.wait(refs, num_returns=len(refs), timeout=CLOSE_SECONDS) if refs else None
        self._ray.shutdown()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except self._ray.exceptions.RayError as error:  # the head does not answer: work in hand will say so
                self._say(f"the cluster cannot be asked for its nodes: {one_line(str(error))}")
            self._first.set()
            self._stopping.wait(WATCH_SECONDS)

    def _look(self) -> None:
        """Workers for machines that have none; machines that are gone are dropped."""
        machines = {n["NodeID"]: n for n in self._ray.nodes() if n["Alive"]}
        with self._lock:
            dead = [n for n in self._nodes.values() if n.node not in machines]
        for node in dead:
            self.lost(node, "its node is gone")
        begun = [pair for m in machines.values() for pair in self._begun(m)]
        for name, start in begun:
            if made := start():
                with self._lock:
                    self._nodes[name] = made
                self._say(f"{name}: {made.slots} at a time, {made.gpu or made.isolation}")

    def _begun(self, machine: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], RayNode | None]]]:
        """Workers that this machine should have and has not, on their way; calling one waits for it."""
        if self._gone[machine["NodeID"]] >= RESTARTS:
            return
        resources, address = machine["Resources"], machine["NodeManagerAddress"]
        cpus = int(resources.get("CPU", 0))
        slots = min(cpus, self._workers) if self._workers else cpus
        shape = [("", slots, {"num_cpus": slots})] if slots else []
        shape += [(f" GPU {n}", 1, {"num_cpus": 0, "num_gpus": 1}) for n in range(int(resources.get("GPU", 0)))]
        for suffix, count, wants in shape:
            name = f"node {address} {machine['NodeID'][:8]}{suffix}"
            if name not in self._nodes and name not in self._refused:
                yield name, self._start(name, machine["NodeID"], count, wants, gpu=bool(suffix))

    def _start(
        self, name: str, machine: str, slots: int, wants: Mapping[str, int], gpu: bool
    ) -> Callable[[], RayNode | None]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(machine, soft=False)
        options = {**wants, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": slots + 1}
        actor = self._ray.remote(Worker).options(**options, scheduling_strategy=place).remote()
        hello = actor.hello.remote()

        def wait() -> RayNode | None:
            why = self._why_not(hello, machine, gpu)
            if not isinstance(why, dict):
                self._ray.kill(actor)
                if why:
                    self._refused.add(name)
                    self._say(f"{name} is not used: {why}")
                return None
            return RayNode(name, machine, slots, why["arch"] if gpu else "", why["isolation"], actor, self._ray)

        return wait

    def _why_not(self, hello: Any, machine: str, gpu: bool) -> dict[str, str] | str:
        """What the worker says of itself; or why it is not used, "" where it may be tried again."""
        errors = self._ray.exceptions
        try:
            said: dict[str, str] = self._ray.get(hello, timeout=HELLO_SECONDS)
        except errors.GetTimeoutError:
            return f"its worker did not come up within {HELLO_SECONDS:.0f} s: its CPUs or GPUs are taken"
        except errors.RayTaskError as error:
            return one_line(str(error).strip().splitlines()[-1])
        except errors.RayError as error:
            self._gone[machine] += 1
            return "" if self._gone[machine] < RESTARTS else f"its worker died: {type(error).__name__}"
        if gpu and not said["arch"]:
            return "Ray counts a GPU there, and torch sees none"
        return said if gpu or not said["unfit"] else said["unfit"]


def _started(address: str, workers: int) -> Any:
    """The ray module, connected. Raises NoRay."""
    try:
        import ray
    except ModuleNotFoundError:
        raise NoRay(INSTALL) from None
    more: dict[str, Any] = {"num_cpus": workers or os.cpu_count() or 1, "include_dashboard": False}
    if address:
        host, _, port = address.rpartition(":")
        more = {"_node_ip_address": host} if host.startswith("127.") else {}  # else Ray looks for it elsewhere
    try:
        if address:  # Ray itself would try for ten minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        with _bare_environment():
            ray.init(address or "local", log_to_driver=False, configure_logging=False, **more)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"no Ray cluster at {address} (HOST:PORT)" if address else "Ray does not start here"
        raise NoRay(f"{where}: {one_line(str(error), 200)}") from None
    return ray


@contextlib.contextmanager
def _bare_environment() -> Iterator[None]:
    """What Ray starts here inherits no key of an endpoint, nor anything else that a runner does not get."""
    before = dict(os.environ)
    kept = child_environment()
    keep = {k: v for k, v in before.items() if k in kept or k.startswith(("RAY_", "KGEN_CACHE", "XDG_", "PYTHON"))}
    os.environ.clear()
    os.environ.update({**keep, **QUIET})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
