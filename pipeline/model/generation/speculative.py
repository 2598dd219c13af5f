"""The decode loop: drafts, one verify step for all of them, and only those kept that plain decoding would have drawn.

A step feeds each row the tokens it has not seen yet, then drafts, `width` in all; the engine gives the logits after
each. At every position the token is drawn as plain decoding draws it: the draw depends on (logits, settings, seed,
how many tokens the request has drawn) only. A draft stays if and only if it equals that draw; the first draw that
differs replaces the draft, and what comes after it is thrown away. So, as long as an engine's verify logits equal its
logits of one token at a time, the output is that of plain decoding (`width` 1), greedy or sampled, whatever the drafts;
drafts decide how many steps it takes. (Rejection sampling after Leviathan et al. accepts a little more often, but
gives other tokens than plain decoding does.) Prompts go through the same steps, so their lengths may differ.
Constraints mask every position along the drafts and are rolled back. Not covered: requests that join a running batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kgen.model.generation.protocol import Drafter, Engine, TokenConstraint
from kgen.model.generation.sampling import Sampling, SamplingRows, draw
from kgen.model.generation.stopping import Stop, StopRules


@dataclass(frozen=True)
class Request:
    """One sequence to continue. The constraint is copied, from the state that it is in."""

    prompt: tuple[int, ...]
    stop: StopRules
    sampling: Sampling = field(default_factory=Sampling)  # greedy
    constraint: TokenConstraint | None = None


@dataclass(frozen=True)
class Completion:
    tokens: tuple[int, ...]  # what was generated, an end token or stop sequence included
    stop: Stop
    steps: int  # verify steps that drew tokens for this request: not those that only read its prompt
    drafted: int  # drafts that were fed in those steps
    accepted: int  # of them kept as output

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per step: 1 for plain decoding, `width` if every draft was right."""
        return len(self.tokens) / self.steps


def generate(
    engine: Engine, requests: Sequence[Request], width: int = 1, drafter: Drafter | None = None
) -> tuple[Completion, ...]:
    """Run all requests, row i of the engine being request i in its start state, until each has stopped.

    `width` tokens a row go into each verify step; above 1 a drafter is needed. Raises ValueError for requests or
    drafts that do not fit, and if a row's logits leave nothing to draw (all NaN or -inf under the mask).
    """
    if width < 1 or not requests or (width > 1 and drafter is None):
        raise ValueError("give at least one request, a width of at least 1, and a drafter for a width above 1")
    rows = [_Row(index, request, width, engine.vocab) for index, request in enumerate(requests)]
    settings: SamplingRows | None = None
    while any(row.stop is None for row in rows):
        drafts = _drafts(drafter, rows, width, engine.vocab)
        tokens = torch.tensor([row.plan(draft) for row, draft in zip(rows, drafts, strict=True)])
        logits = engine.verify(tokens)
        if logits.shape != (*tokens.shape, engine.vocab):
            raise ValueError(f"the engine gave logits {tuple(logits.shape)} for tokens {tuple(tokens.shape)}")
        if settings is None:  # the engine's device is known now
            settings = SamplingRows.of([r.sampling for r in requests], logits.device).repeated(width)
        drawn = _drawn(rows, logits, settings)
        engine.accept(torch.tensor([row.take(token) for row, token in zip(rows, drawn, strict=True)]))
    return tuple(row.completion() for row in rows)


def _drafts(drafter: Drafter | None, rows: Sequence["_Row"], width: int, vocab: int) -> list[list[int]]:
    if drafter is None or width == 1:
        return [[] for _ in rows]
    drafts = drafter([row.history for row in rows])
    if drafts.shape != (len(rows), width - 1) or drafts.is_floating_point():
        raise ValueError(f"the drafter gave {drafts.dtype} {tuple(drafts.shape)}, not int64 {(len(rows), width - 1)}")
    listed: list[list[int]] = drafts.tolist()
    if bad := [t for row in listed for t in row if not 0 <= t < vocab]:
        raise ValueError(f"the drafter gave token {bad[0]}, outside the vocabulary of {vocab}")
    return listed


def _drawn(rows: Sequence["_Row"], logits: torch.Tensor, settings: SamplingRows) -> list[list[int]]:
    """The tokens that plain decoding would draw at each position, drafts being right up to there."""
    shape = logits.shape[:2]
    steps = torch.tensor([row.steps_at_positions() for row in rows], device=logits.device)
    mask: torch.Tensor | None = None
    if any(row.constraint is not None for row in rows):
        host = torch.ones(logits.shape, dtype=torch.bool)
        for row, row_mask in zip(rows, host, strict=True):
            row.fill(row_mask)
        mask = host.flatten(0, 1).to(logits.device)
    tokens: list[list[int]] = draw(logits.flatten(0, 1), settings, steps.flatten(), mask).view(shape).tolist()
    return tokens


class _Row:
    """One request under way. Between steps `history` is what the row holds, and the engine has seen `fed` of it."""

    def __init__(self, index: int, request: Request, width: int, vocab: int) -> None:
        if not request.prompt or not all(0 <= t < vocab for t in request.prompt):
            raise ValueError(f"request {index}: give a prompt of at least one token, all below {vocab}")
        self.index, self.width = index, width
        self.rules, self.prompt = request.stop, len(request.prompt)
        self.constraint = None if request.constraint is None else request.constraint.copy()
        self.history = list(request.prompt)
        self.fed = 0
        self.stop: Stop | None = None
        self._known = 0  # tokens of this step that are not drafts
        self._drafts: list[int] = []
        self._counts = [0, 0, 0]  # steps, drafted, accepted

    def plan(self, drafts: list[int]) -> list[int]:
        """The `width` tokens of the next step; padding where a row is done, or has no drafts."""
        known = self.history[self.fed : self.fed + self.width] if self.stop is None else []
        self._known = len(known)
        self._drafts = drafts[: self.width - self._known] if self._draws else []
        step = known + self._drafts
        return step + [self.history[-1]] * (self.width - len(step))

    @property
    def _draws(self) -> bool:
        """Whether this step reaches the end of what is known."""
        return self.stop is None and self.fed + self._known == len(self.history)

    def steps_at_positions(self) -> list[int]:
        """How many tokens have been drawn before, if the drafts before a position are right."""
        drawn = len(self.history) - self.prompt
        return [max(0, drawn + i - (self._known - 1)) for i in range(self.width)]

    def fill(self, mask: torch.Tensor) -> None:
        """Write the constraint's masks [width, vocab] along the drafts, and leave the constraint where it was."""
        if self.constraint is None or not self._draws:
            return
        taken = 0
        for position, draft in enumerate([*self._drafts, -1], start=self._known - 1):
            allowed = self.constraint.mask()
            mask[position].copy_(allowed)
            if draft < 0 or not allowed[draft]:
                break  # positions after a wrong draft are thrown away
            self.constraint.advance(draft)
            taken += 1
        self.constraint.rollback(taken)

    def take(self, drawn: list[int]) -> int:
        """Keep the step's tokens as far as they go: how many of those that were fed stay in the engine's state."""
        if self.stop is not None:
            return 1
        kept = self._known
        if self._draws:
            kept += self._extend(drawn)
        self.fed += kept
        return kept

    def _extend(self, drawn: list[int]) -> int:
        """Append draws up to the first that its draft does not foresee, or a stop: the number of right drafts."""
        right = 0
        for token in drawn[self._known - 1 :][: len(self._drafts) + 1]:
            if token < 0:
                raise ValueError(f"request {self.index}: the logits leave no token to draw (all NaN, -inf or masked)")
            self.history.append(token)
            finished = False
            if self.constraint is not None:
                self.constraint.advance(token)
                finished = self.constraint.finished()
            foreseen = right < len(self._drafts) and self._drafts[right] == token
            right += foreseen
            self.stop = self.rules.check(self.history[self.prompt :], finished)
            if self.stop is not None or not foreseen:
                break
        self._counts = [c + n for c, n in zip(self._counts, (1, len(self._drafts), right), strict=True)]
        return right

    def completion(self) -> Completion:
        assert self.stop is not None
        return Completion(tuple(self.history[self.prompt :]), self.stop, *self._counts)
