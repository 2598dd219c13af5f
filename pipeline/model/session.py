"""A running batch: fixed rows (a token bin), sequences in the first of them, eager or as one CUDA graph a step.

Rows beyond the true count are padding: they hold some token, keep a state and are thrown away. Not covered: sequences
that join or leave within a session.
"""

from dataclasses import dataclass

import torch

from kgen.model.step import DecodeStep, Output, State, new_state


@dataclass
class Session:
    """One batch of `count` sequences at the step's bin. `graph` is set once captured."""

    step: DecodeStep
    count: int
    padding: int = 0  # the token that padding rows hold

    def __post_init__(self) -> None:
        if not 0 < self.count <= self.step.tokens:
            raise ValueError(f"{self.count} sequences do not fit the bin of {self.step.tokens} tokens")
        self.state: State = new_state(self.step.dims, self.step.tokens, self.step.weights)
        device = self.step.weights.embed.device
        self._ids = torch.full((self.step.tokens,), self.padding, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured: Output | None = None

    def reset(self) -> None:
        """Back to the start of all sequences; a captured graph stays."""
        self.state.reset()

    def warm(self, times: int = 2) -> None:
        """Run the step on a side stream, as a capture needs it beforehand; the state starts afresh afterwards."""
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(times):
                self.step(self._ids, self.state)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.reset()

    def capture(self) -> None:
        """Record one step as a CUDA graph (nothing runs); `run` replays it from now on."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._captured = self.step(self._ids, self.state)
        self._graph = graph

    def run(self, ids: torch.Tensor) -> Output:
        """One step for int64 ids [count]: replays the graph if there is one. The result's rows are [count]."""
        self._ids[: self.count].copy_(ids)
        if self._graph is not None and self._captured is not None:
            self._graph.replay()
            out = self._captured
        else:
            out = self.step(self._ids, self.state)
        # copies: a seat's output buffer, and a graph's memory, are written again by the next step
        return Output(out.logits[: self.count].clone(), out.hidden[: self.count].clone())

    def replay(self, times: int) -> None:
        """Replay the captured graph on the tokens that were set last. Raises RuntimeError before a capture."""
        if self._graph is None:
            raise RuntimeError("capture the session before replaying it")
        for _ in range(times):
            self._graph.replay()
        torch.cuda.synchronize()

    def teacher_forced(self, ids: torch.Tensor) -> Output:
        """ids [steps, count] -> logits [steps, count, vocab] and hidden [steps, count, hidden], from the start."""
        self.reset()
        outs = [self.run(row) for row in ids]
        return Output(torch.stack([o.logits for o in outs]), torch.stack([o.hidden for o in outs]))

    def generate(self, prompt: torch.Tensor, steps: int) -> torch.Tensor:
        """Greedy continuation of prompt [length, count]: int64 [steps, count]; the lowest id wins a tie."""
        self.reset()
        for row in prompt[:-1]:
            self.run(row)
        token, tokens = prompt[-1], []
        for _ in range(steps):
            token = lowest_argmax(self.run(token).logits)
            tokens.append(token)
        return torch.stack(tokens)


def lowest_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest value along the last axis, the lowest of equals (int64); the last one for a NaN row."""
    best = logits == logits.amax(-1, keepdim=True)
    index = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(best, index, logits.shape[-1] - 1).amin(-1)
