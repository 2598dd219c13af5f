"""Nodes of a pool within this process: real workers with caches of their own, which can be lost or lie."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kgen.pool.dispatch import Lost, Node
from kgen.pool.tasks import Blobs
from kgen.pool.worker import Answer, Worker

Bend = Callable[[bytes, dict[str, bytes]], Answer]


@dataclass
class HereNode:
    """`bend`: what becomes of an answer on its way; `dies`: with how many tasks of its own it is lost, at the first."""

    name: str
    worker: Worker
    slots: int = 1
    gpu: str = ""
    isolation: str = "here"
    bend: Bend = lambda message, blobs: (message, blobs)
    dies: int = 0
    asked: list[bytes] = field(default_factory=list)

    def call(self, message: bytes, blobs: Blobs, seconds: float, stopping: threading.Event) -> Answer:
        self.asked.append(message)
        if self.dies:
            self.dies -= 1
            raise Lost("its power was cut")
        return self.bend(*self.worker.do(message, blobs))


class HereNodes:
    def __init__(self, nodes: Sequence[HereNode]) -> None:
        self.nodes = list(nodes)
        self.gone: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []

    def alive(self) -> Sequence[Node]:
        return tuple(self.nodes)

    def lost(self, node: Node, why: str) -> None:
        self.gone.append((node.name, why))
        self.nodes = [n for n in self.nodes if n.name != node.name]

    def refuse(self, node: Node, why: str) -> None:
        self.refused.append((node.name, why))
        self.nodes = [n for n in self.nodes if n.name != node.name]

    def close(self, at_once: bool) -> None:
        for node in self.nodes:
            node.worker.close()


def here(folder: Path, name: str, **more: object) -> HereNode:
    return HereNode(name, Worker(str(folder / name)), **more)  # type: ignore[arg-type]
