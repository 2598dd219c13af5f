"""Training steps as CUDA graphs: one launch a step instead of thousands, since a small model waits for its launches.

A graph holds forward, backward, clipping, optimiser and routing bias of one row length; what changes from step to step
(tokens, rates) lies in tensors that it reads. The first steps of a length run eagerly, as warm-up that counts. All
graphs share one memory pool: only one of them runs at a time, and between two of them nothing of it is needed.

Not here: what a step computes (`learning`).
"""

from collections import deque
from dataclasses import dataclass, field

import torch

from kgen.model.nano.batches import Batch
from kgen.model.nano.learning import Rates, rates_at, step_on
from kgen.model.nano.trainable import NanoModel

WARM_STEPS = 2  # eager steps of a length before its capture
AHEAD = 2
IGNORED = -100  # target that counts in no loss
Key = tuple[int, int, bool]  # rows, length, quantised


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # what it reads
    loss: torch.Tensor  # what it writes


@dataclass
class CapturedSteps:
    """`train_step` with graphs, on a CUDA device. A batch that holds more answers than a graph has room for is eager.

    At most AHEAD steps wait on the device, so that a clock on the host tells how far the training is.
    """

    model: NanoModel
    optimiser: torch.optim.Optimizer
    rate: float
    seen: dict[Key, int] = field(default_factory=dict)
    graphs: dict[Key, _Graph] = field(default_factory=dict)
    waiting: deque[torch.cuda.Event] = field(default_factory=deque)

    def __post_init__(self) -> None:
        device = self.model.embed.device
        self.rates = Rates.on(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch, progress: float, quantise: bool) -> torch.Tensor:
        if len(self.waiting) >= AHEAD:
            self.waiting.popleft().synchronize()
        loss = self._step(batch, progress, quantise)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.waiting.append(event)
        return loss

    def _step(self, batch: Batch, progress: float, quantise: bool) -> torch.Tensor:
        self.rates.set(rates_at(progress, self.rate))
        room = batch.ids.numel() // 2 + 8 * batch.ids.shape[0]  # an answer is no longer than its prompt
        key = (*batch.ids.shape, quantise)
        if self.seen.get(key, 0) < WARM_STEPS or batch.positions.numel() > room:
            self.seen[key] = self.seen.get(key, 0) + 1
            return self._eager(batch, quantise)
        if key not in self.graphs:
            self.graphs[key] = self._capture(batch, room, quantise)
        held = self.graphs[key]
        _fill(held.batch, batch)
        held.graph.replay()
        return held.loss.clone()

    def _eager(self, batch: Batch, quantise: bool) -> torch.Tensor:
        """On a stream of its own, as a capture is: buffers that autograd makes then belong to no other stream."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = step_on(self.model, self.optimiser, batch, self.rates, quantise)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _capture(self, like: Batch, room: int, quantise: bool) -> _Graph:
        """Recorded, not run. Gradients of earlier steps go first: they belong to another graph."""
        device = like.ids.device
        held = Batch(
            torch.zeros_like(like.ids),
            torch.arange(room, device=device),  # distinct: their gradients, all zero, do not queue at one row
            torch.full((room,), IGNORED, dtype=torch.int64, device=device),
            torch.zeros(0, dtype=torch.int64, device=device),
        )
        self.optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            loss = step_on(self.model, self.optimiser, held, self.rates, quantise)
        self.optimiser.zero_grad(set_to_none=True)
        return _Graph(graph, held, loss)


def _fill(held: Batch, batch: Batch) -> None:
    """The batch in the place of the last one; targets beyond its own count in no loss."""
    count = batch.positions.numel()
    held.ids.copy_(batch.ids)
    held.positions[:count].copy_(batch.positions)
    held.targets[:count].copy_(batch.targets)
    held.targets[count:].fill_(IGNORED)
