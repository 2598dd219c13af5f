"""Who does which task: a node with a free slot, another one when it is lost, and no work twice.

    dispatcher = Dispatcher(nodes, say)
    future = dispatcher.submit(task, take)      `take` makes the result of an answer, and stores it
    dispatcher.close()

A task that is in work is found by its key; what is done, its `take` has stored. A node that is lost, and a node whose
machine fails, send the task to another one, TRIES times at most; that is never a failure of a candidate. Not covered:
what nodes are (`ray_nodes`).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kgen.pool.tasks import Blobs, Task
from kgen.records import RecordError, strict_json

TRIES = 5
NODE_SECONDS = 120.0  # without any node that a task can go to
POLL_SECONDS = 0.5
MANY = 256  # tasks under way, on all nodes together: nodes may join
CLOSED = "the pool is closed"
Say = Callable[[str], None]
R = TypeVar("R")


class PoolError(Exception):
    """No node did the work: ours or a machine's fault, worth repeating. One line."""


class Lost(Exception):
    """The node is gone, or no longer answers. One line."""


class Unusable(Exception):
    """An answer that cannot be right: its node is not asked again. One line."""


class Broken(Exception):
    """The node lives and could not do the task. One line."""


@dataclass(frozen=True)
class Answered:
    """What a node said: JSON, and files by name."""

    value: Any
    blobs: Blobs


class Node(Protocol):
    """`gpu`: the arch of its GPU, which is its own then; "" for a node that builds and interprets."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int: ...

    @property
    def gpu(self) -> str: ...

    @property
    def isolation(self) -> str:
        """The level of its sandbox."""

    def call(self, message: bytes, blobs: Blobs, seconds: float, stopping: threading.Event) -> tuple[bytes, Blobs]:
        """Raises Lost or Broken."""


class Nodes(Protocol):
    def alive(self) -> Sequence[Node]:
        """Those that can be asked now."""

    def lost(self, node: Node, why: str) -> None:
        """It did not answer: it is to be looked after, or left."""

    def refuse(self, node: Node, why: str) -> None:
        """It is not to be used again."""

    def close(self, at_once: bool) -> None: ...


class Dispatcher:
    """Thread-safe."""

    def __init__(self, nodes: Nodes, say: Say) -> None:
        self.nodes, self._say = nodes, say
        self._threads = ThreadPoolExecutor(MANY, thread_name_prefix="kgen-pool")
        self._stopping = threading.Event()
        self._free = threading.Condition()
        self._busy: Counter[str] = Counter()
        self._known: dict[str, Future[Any]] = {}
        self.done: Counter[str] = Counter()  # answers by node
        self.again = 0  # tasks that had to be sent to another node

    def submit(self, task: Task, take: Callable[[Answered], R]) -> "Future[R]":
        """The result, or PoolError in its place. `take` raises Unusable for an answer that cannot be right."""
        key = task.key
        with self._free:
            if key in self._known:
                return self._known[key]
            try:
                future = self._known[key] = self._threads.submit(self._run, task, take)
            except RuntimeError:  # no more work is taken
                gone: Future[R] = Future()
                gone.set_exception(PoolError(CLOSED))
                return gone
        future.add_done_callback(lambda _: self._known.pop(key, None))
        return future

    def result(self, task: Task, take: Callable[[Answered], R]) -> R:
        """The same, waited for. Raises PoolError."""
        try:
            return self.submit(task, take).result()
        except CancelledError:
            raise PoolError(CLOSED) from None

    def busy(self) -> dict[str, int]:
        """Tasks under way, by node."""
        with self._free:
            return {name: count for name, count in self._busy.items() if count}

    def close(self, at_once: bool = False) -> None:
        """Tasks that wait are given up; `at_once`: so are those in work."""
        if at_once:
            self._stopping.set()
        self._threads.shutdown(cancel_futures=True)
        self._stopping.set()
        self.nodes.close(at_once)

    def _run(self, task: Task, take: Callable[[Answered], R]) -> R:
        tried: list[str] = []
        why = ""
        while len(tried) < TRIES:
            if tried:
                self.again += 1
                self._say(f"{task.kind} of {task.op} is sent out again: {why}")
            node = self._take(task, tried)
            tried.append(node.name)
            try:
                answered = _answered(*node.call(task.message, task.blobs, task.seconds, self._stopping))
                result = take(answered)
            except Lost as lost:
                why = f"{node.name}: {lost}"
                if not self._stopping.is_set():
                    self.nodes.lost(node, str(lost))
            except Unusable as unusable:
                why = f"{node.name}: {unusable}"
                self.nodes.refuse(node, str(unusable))
            except Broken as broken:
                why = f"{node.name}: {broken}"
            else:
                self.done[node.name] += 1
                return result
            finally:
                self._give(node)
        raise PoolError(f"{TRIES} nodes were asked in vain; the last was {why}")

    def _take(self, task: Task, tried: Sequence[str]) -> Node:
        """A node with a free slot: not one that was tried, the least busy. Raises PoolError when none is there."""
        seen = time.monotonic()
        with self._free:
            while not self._stopping.is_set():
                fitting = [n for n in self.nodes.alive() if n.gpu == task.gpu]
                seen = time.monotonic() if fitting else seen
                free = [n for n in fitting if self._busy[n.name] < n.slots]
                if free:
                    node = max(free, key=lambda n: (n.name not in tried, n.slots - self._busy[n.name], n.name))
                    self._busy[node.name] += 1
                    return node
                if time.monotonic() - seen > NODE_SECONDS:
                    what = f"with a GPU of {task.gpu}" if task.gpu else "that can build"
                    raise PoolError(f"no node {what} for {NODE_SECONDS:.0f} s")
                self._free.wait(POLL_SECONDS)
        raise PoolError(CLOSED)

    def _give(self, node: Node) -> None:
        with self._free:
            self._busy[node.name] -= 1
            self._free.notify_all()


def _answered(message: bytes, blobs: Blobs) -> Answered:
    """Raises Unusable or Broken where the node itself says that it has no result."""
    try:
        value = strict_json(message)
    except RecordError as error:
        raise Unusable(f"an answer that cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise Unusable("an answer that is no JSON object")
    if reason := value.get("unfit"):
        raise Unusable(str(reason))
    if reason := value.get("again"):
        raise Broken(str(reason))
    return Answered(value, blobs)
