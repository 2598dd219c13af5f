"""The one protocol of everything that writes candidates, and what passes through it.

A proposer sees the op contract, the problems and the history of verdicts; it gives back sources. It has no authority:
the gates decide. Candidates of one `propose` call are deterministic in (request.seed, request.history) for `search`
and `replay`; a language model or a person is not. Not covered here: how often the loop asks, and when it stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from kgen.records import Candidate, PerfPoint, Problem, Verdict
from kgen.records.codec import OPTIONAL

if TYPE_CHECKING:  # the op contract imports torch; the protocol itself stays light
    from kgen.contract import Op
    from kgen.proposers.tools import Tool

History = tuple[tuple[Candidate, Verdict], ...]


@dataclass(frozen=True)
class Usage:
    """What proposals cost. `cost_usd` is None where the price is not known; `estimated`: token counts are guesses.

    `lost` requests came to nothing after the endpoint may have worked on them: their tokens are not known, and
    `cost_usd` holds the most that they can have cost.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 0  # requests sent, retries included
    seconds: float = 0.0
    cost_usd: float | None = None
    estimated: bool = False
    cached_tokens: int = field(default=0, metadata=OPTIONAL)  # of the prompt's: read from the server's cache
    reasoning_tokens: int = field(default=0, metadata=OPTIONAL)  # of the completion's
    lost: int = field(default=0, metadata=OPTIONAL)

    def __add__(self, other: Usage) -> Usage:
        known = [c for c in (self.cost_usd, other.cost_usd) if c is not None]
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.attempts + other.attempts,
            self.seconds + other.seconds,
            sum(known) if known else None,
            self.estimated or other.estimated,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.lost + other.lost,
        )


@dataclass(frozen=True)
class Budget:
    """What this request may still spend. None: no limit of that kind."""

    cost_usd: float | None = None
    tokens: int | None = None  # prompt and completion together
    attempts: int | None = None


DESIGN, REPAIR, OPTIMISE, CROSSOVER, RESTART = "design", "repair", "optimise", "crossover", "restart"


@dataclass(frozen=True)
class Ask:
    """What the plan wants of one question, and why.

    design      a candidate of its own; `parents` is empty
    repair      the one parent failed a gate: the same design, right
    optimise    the one parent is right: faster, at `tokens`
    crossover   two right parents, each the best at another range of tokens: one candidate with the best of both
    restart     the run is stuck: a design unlike all that was tried; `parents` is empty

    `parents` are ids of candidates of the history, `tokens` the bins that it is about (empty: all), `count` how many
    candidates are wanted. Where such questions are put at the same time, each is number `index` of `of`.
    """

    SCHEMA: ClassVar[str] = "kgen.ask/1"
    number: int  # in its round, from 1
    kind: str
    parents: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    reason: str = ""
    count: int = 1
    index: int = field(default=1, metadata=OPTIONAL)
    of: int = field(default=1, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a run's questions say of the run. Nothing of a clock: asked again, a question is the same text.

    `candidates`, `rounds` and `minutes` are limits of the whole run. `patience` and `roofline`: its other rules to end,
    0 where they do not hold. `timed`: a GPU will time what is right; `measured`: it also orders a round's candidates,
    which else the static cost at the points `ranked` does. `interpreted`: what the interpreter judges without a GPU.
    `lessons` is foreign text.
    """

    rounds: int
    per_round: int
    candidates: int
    minutes: float
    patience: int = 0
    roofline: float = 0.0
    timed: bool = False
    measured: bool = False
    ranked: tuple[Problem, ...] = ()
    interpreted: tuple[Problem, ...] = ()
    lessons: str = ""


@dataclass(frozen=True)
class Place:
    """A right candidate among those of its run: 1 is the best. `value`: the number that it stands by, in words.

    `answer` is the file in the run folder that it came in, "" where it came in none.
    """

    id: str
    rank: int
    value: str
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class Standings:
    """How the candidates of a run stand when somebody is told of them.

    `places`: what is right and has a number, best first, by the run's own order, which `measure` says in words.
    `costs`: what static costs are made of, as lines of text by candidate id. `latest`: ids that the last judged round
    brought. `over`: why nothing more is asked, "" while it may be. `small`: the dims whose builds say nothing of speed.
    """

    places: tuple[Place, ...] = ()
    measure: str = ""
    costs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    latest: tuple[str, ...] = ()
    over: str = ""
    small: str = ""

    def place(self, candidate: str) -> Place | None:
        return next((p for p in self.places if p.id == candidate), None)


@dataclass(frozen=True, kw_only=True)
class ProposalRequest:
    """One question to a proposer. `deadline_s` counts from the call; `count` is how many candidates are wanted.

    `ask` says what the loop wants and of which parents; None: the proposer makes of the history what it will. `round`
    is the number of the round in work (0: none), `taken` are ids of candidates that its earlier asks have given.
    """

    op: Op
    problems: tuple[Problem, ...]
    archs: tuple[str, ...]
    run: Path  # the run folder: prompts, answers and mailbox files are kept below it
    history: History = ()
    points: Mapping[str, tuple[PerfPoint, ...]] = field(default_factory=dict)  # timed points by candidate id
    costs: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # µs by candidate id and tokens, see Ranked
    count: int = 1
    seed: int = 0
    deadline_s: float = 600.0
    budget: Budget = field(default_factory=Budget)
    ask: Ask | None = None
    round: int = 0
    taken: frozenset[str] = frozenset()
    tools: tuple[Tool, ...] = ()  # read-only; for proposers that can offer them to a model
    situation: Situation | None = None  # of the run; None: nothing is known of it
    standings: Standings | None = None  # of the history; None: nobody has looked


@dataclass(frozen=True)
class Proposal:
    """The answer: candidates, what they cost, and in words why there are fewer than wanted.

    `pending` is set when a person or another agent has still to answer: it says exactly which file to write.
    Iterating over a proposal gives its candidates.
    """

    candidates: tuple[Candidate, ...] = ()
    usage: Usage = field(default_factory=Usage)
    note: str = ""
    pending: str = ""

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)


class Proposer(Protocol):
    """Raises ProposerError (try again), SetupError (a person must act), ProposerExhausted or BudgetError.

    A proposer with a true attribute `concurrent` is called from several threads at once, one ask for one candidate each
    call; another one is called for one ask after the other, and may be asked for several candidates alike.
    """

    @property
    def name(self) -> str: ...

    def propose(self, request: ProposalRequest) -> Proposal: ...


@runtime_checkable
class Together(Protocol):
    """A proposer that wants all questions of a round at once; each request is for one candidate."""

    def propose_all(self, requests: Sequence[ProposalRequest]) -> list[Proposal]:
        """A proposal for each request in their order, or one that is pending for all."""
        ...


@runtime_checkable
class Listener(Protocol):
    """A proposer that wants to hear how it went on. It may be told the same again. Raises StoreError."""

    def judged(self, run: Path, candidate: Candidate, verdict: Verdict, standings: Standings | None = None) -> None: ...

    def ended(self, run: Path, outcome: str, why: str, standings: Standings | None = None) -> None: ...


class ProposerFailure(Exception):
    """Why there is no proposal. Carries what the failed attempts cost; the message is one line, without secrets."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()


class ProposerError(ProposerFailure):
    """Infrastructure failed (endpoint, network, deadline): retryable."""


class SetupError(ProposerFailure):
    """The endpoint refuses this key, model or request: asking again will not help. The message says what to do."""


class ProposerExhausted(ProposerFailure):
    """Nothing more will come: the space is searched, the recording is used up, or the answers stay unusable."""


class BudgetError(ProposerFailure):
    """Going on would exceed the request's budget."""
