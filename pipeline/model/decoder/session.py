"""A running batch of one engine: eager, or one CUDA graph a step; decode, verify, accept.

`rows` are fixed (a token bin); requests beyond the true count are padding rows on null slots. A session is made for
one verify width: q = 1 decodes, q > 1 verifies q tokens at a time and keeps an accepted prefix of them. Not covered:
requests that join or leave within a session.
"""

import torch

from kgen.model.decoder.state import State, new_state
from kgen.model.decoder.step import DecodeStep, Output

PADDING_TOKEN = 0


class Session:
    """`count` sequences in a step's rows, with room for `context` positions each.

    Raises ValueError for a count that does not fit and, on use, for a context that is full.
    """

    def __init__(self, step: DecodeStep, count: int, context: int, state: State | None = None) -> None:
        if not 0 < count <= step.requests:
            raise ValueError(f"{count} sequences do not fit a batch of {step.requests} requests")
        self.step, self.count, self.context = step, count, context
        weights, registry = step.weights, step.seats.registry
        wide = weights["embed"].dtype if weights["embed"].dtype == torch.float64 else None
        self.state = state or new_state(
            step.config, registry, step.requests, step.q, context, weights.device, dtype=wide
        )
        self.state.active[count:] = False
        self._ids = torch.full((step.rows,), PADDING_TOKEN, dtype=torch.int64, device=weights.device)
        self._used = 0  # positions of the longest sequence, kept on the host: no device read in the loop
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured: Output | None = None

    @property
    def tokens(self) -> torch.Tensor:
        """i64 [rows]: what the step reads, padding rows included; the same memory at every step."""
        return self._ids

    def reset(self) -> None:
        """Back to the start of all sequences; a captured graph stays."""
        self.state.reset()
        self._used = 0

    def make_room(self, tokens: int) -> None:
        """Raises ValueError (one line) unless `tokens` more positions fit."""
        if self._used + tokens > self.context:
            raise ValueError(f"the context of {self.context} positions is full: {self._used} used, {tokens} wanted")

    def skip(self, tokens: int) -> None:
        """Count `tokens` positions that somebody else has filled (prefill)."""
        self.state.lengths.add_(torch.where(self.state.active, tokens, 0).to(torch.int32))
        self.state.accepted.fill_(1)
        self._used += tokens

    def verify(self, ids: torch.Tensor) -> Output:
        """ids int64 [count, q]: run the step without advancing; call `accept` next. Rows of the result: [count * q]."""
        self.make_room(self.step.q)
        rows = self.count * self.step.q
        self._ids[:rows].copy_(ids.reshape(-1))
        if self._graph is not None and self._captured is not None:
            self._graph.replay()
            out = self._captured
        else:
            out = self.step(self._ids, self.state)
        # copies: a seat's output buffer, and a graph's memory, are written again by the next step
        return Output(out.logits[:rows].clone(), out.hidden[:rows].clone(), out.best[:rows].clone())

    def accept(self, counts: torch.Tensor) -> None:
        """Keep the first counts[r] (1..q) tokens of each request of the last step, i32 [count]."""
        kept = torch.ones_like(self.state.accepted)
        kept[: self.count] = counts.to(kept)
        self.state.advance(kept)
        self._used += self.step.q

    def decode(self, ids: torch.Tensor) -> Output:
        """One step of a q = 1 session for ids int64 [count]."""
        if self.step.q != 1:
            raise ValueError(f"this session verifies {self.step.q} tokens at a time: use verify and accept")
        out = self.verify(ids)
        self.accept(torch.ones(self.count, dtype=torch.int32, device=ids.device))
        return out

    def teacher_forced(self, ids: torch.Tensor) -> Output:
        """ids [steps, count] from the start -> logits, hidden [steps, count, ...], best [steps, count] (q = 1)."""
        self.reset()
        outs = [self.decode(row) for row in ids]
        return Output(*(torch.stack([getattr(o, n) for o in outs]) for n in ("logits", "hidden", "best")))

    def generate(self, prompt: torch.Tensor, steps: int) -> torch.Tensor:
        """Greedy continuation of prompt [length, count]: int64 [steps, count] (q = 1)."""
        self.reset()
        for row in prompt[:-1]:
            self.decode(row)
        token, tokens = prompt[-1], []
        for _ in range(steps):
            token = self.decode(token).best.to(torch.int64)
            tokens.append(token)
        return torch.stack(tokens)

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
        """Record one step as a CUDA graph (nothing runs); steps replay it from now on."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._captured = self.step(self._ids, self.state)
        self._graph = graph

    def replay(self, times: int) -> None:
        """Replay the captured graph on the tokens that were set last, without advancing.

        Raises RuntimeError before a capture, ValueError when the context is full: a step reads its own positions too.
        """
        if self._graph is None:
            raise RuntimeError("capture the session before replaying it")
        self.make_room(self.step.q)
        for _ in range(times):
            self._graph.replay()
        torch.cuda.synchronize()
