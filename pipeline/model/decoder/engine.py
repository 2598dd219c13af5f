"""What a model evaluation drives: a small protocol, and its first implementation, the model of this package.

    engine.prepare(requests, count, q, context, graph) -> sequences     a batch with room for `context` positions
    sequences.decode(ids) / .verify(ids) and .accept(counts)            one step; logits and hidden rows
    engine.launches() -> {object hash: {kernel: launches}}              counted where objects meet the runtime

An engine decides what sits in the ops' seats; the evaluation decides nothing about that and only reads the record.
`ForGeneration` puts a batch under `kgen.model.generation`. Not covered: serving engines of others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from kgen.contract.op import Registry
from kgen.model.bind import Binder
from kgen.model.decoder.config import Config
from kgen.model.decoder.session import Session
from kgen.model.decoder.step import DecodeStep, Output
from kgen.model.decoder.weights import Weights

Launches = dict[str, dict[str, int]]


class Sequences(Protocol):
    """`count` sequences that take `q` tokens a step."""

    @property
    def count(self) -> int: ...

    def decode(self, ids: torch.Tensor) -> Output:
        """int64 ids [count] -> rows [count]; only for q = 1."""
        ...

    def verify(self, ids: torch.Tensor) -> Output:
        """int64 ids [count, q] -> rows [count * q]; nothing is kept until `accept`."""
        ...

    def accept(self, counts: torch.Tensor) -> None:
        """int [count], 1..q: how many of the last step's tokens stay."""
        ...

    def reset(self) -> None: ...


class Engine(Protocol):
    def prepare(self, requests: int, count: int, q: int, context: int, graph: bool) -> Sequences: ...

    def launches(self) -> Launches:
        """Launches of kernels that are not stock, since the engine was made; a captured launch counts once."""
        ...


@dataclass(frozen=True)
class DecoderEngine:
    """The model of this package with a binder's callables in its seats. `counted`: the binder's launch record."""

    config: Config
    weights: Weights
    registry: Registry
    arch: str
    binder: Binder
    counted: Callable[[], Mapping[str, Mapping[str, int]]] = dict

    def prepare(self, requests: int, count: int, q: int, context: int, graph: bool) -> Session:
        """Raises ValueError (one line) for a batch that the model does not have; `graph` needs a CUDA device."""
        step = DecodeStep(self.config, self.weights, requests, q, self.arch, self.binder, self.registry)
        session = Session(step, count, context)
        if graph:
            session.warm()
            session.capture()
        return session

    def launches(self) -> Launches:
        return {key: dict(counts) for key, counts in self.counted().items()}


@dataclass(frozen=True)
class ForGeneration:
    """A batch as `kgen.model.generation` drives it: tokens and logits on the CPU. The batch starts afresh."""

    sequences: Session

    @property
    def vocab(self) -> int:
        return int(self.sequences.step.weights["lm_head"].shape[0])

    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [rows, q] -> float32 logits [rows, q, vocab]."""
        out = self.sequences.verify(tokens.to(self.sequences.step.weights.device))
        return out.logits.float().cpu().reshape(*tokens.shape, -1)

    def accept(self, counts: torch.Tensor) -> None:
        self.sequences.accept(counts.to(self.sequences.step.weights.device))
