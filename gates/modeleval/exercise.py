"""What the model evaluation runs, as records: which decode model, what it does, at which sizes. No torch at import.

Both sides of a comparison get the same exercises; nothing here says what they should find. Kinds:

    forced       given tokens, step by step, against float64 and stock; with `states` the recurrent states too
    filled       the same behind a context of `context` rows that a seed filled
    free         greedy continuation, against float64's, or against stock's, where stock also reads its own in verify
                 steps of `other` tokens
    tasks        prompts of the small model's tasks, which the stock ops read, then the greedy answer in decode steps
    long         the same behind long prompts
    verify       greedy decoding with drafts, `q` tokens a step, against the same engine's plain decoding
    constrained  answers under a grammar
    sampling     tokens drawn from the logits of given contexts
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

FORCED, FILLED, FREE, TASKS, LONG = "forced", "filled", "free", "tasks", "long"
VERIFY, CONSTRAINED, SAMPLING = "verify", "constrained", "sampling"
ROWS = (FORCED, FILLED)  # kinds whose rows of logits are compared with float64's
EAGER, GRAPH, OTHER = "eager", "graph", "other"
LOOKUP, BAD = "lookup", "bad"  # drafters: one that guesses from the history, one that is nearly always wrong


@dataclass(frozen=True)
class Way:
    """A decode model: a configuration of kgen.model.decoder by name, with these changes.

    `depth` keeps the first layers only (0: all); `axes` chooses compile-time variants by op.
    """

    SCHEMA: ClassVar[str] = "kgen.eval-way/1"
    config: str
    depth: int = 0
    dcp: int = 1
    fused_oproj: bool = False
    axes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The configuration and what differs from it."""
        parts = [self.config, f"first{self.depth}" if self.depth else "", f"dcp{self.dcp}" if self.dcp > 1 else ""]
        parts.append("fused" if self.fused_oproj else "")
        parts += [f"{op}.{a}={v}" for op, chosen in sorted(self.axes.items()) for a, v in sorted(chosen.items())]
        return "+".join(part for part in parts if part)


@dataclass(frozen=True)
class Exercise:
    """`requests` of a step (rows are requests x q), of which `count` are sequences and the rest padding."""

    SCHEMA: ClassVar[str] = "kgen.eval-exercise/1"
    kind: str
    way: Way
    requests: int
    count: int
    steps: int  # steps (forced, filled), tokens (free, verify, constrained, long) or tokens of a context (sampling)
    modes: tuple[str, ...]
    q: int = 1
    prompt: int = 4  # given tokens before free generation
    context: int = 0  # rows of a filled context; length of long items, and of some recall items of `tasks`
    every: int = 1  # logits of every so many steps are kept
    states: int = 0  # checkpoints of the recurrent states
    other: int = 0  # tokens a verify step in which stock reads its own continuation again, 0: it does not
    items: int = 0
    draws: int = 0  # tokens drawn from each context
    drafter: str = ""
    brief: bool = False  # run switched off, and by mutants, too
    profiled: bool = False  # replays are cross-checked with the profiler
    given: bool = False  # experts by token id, the same on all sides (kgen.gates.modeleval.given)
    shortest: bool = False  # items as short as their task allows, else of its usual length
    heads: bool = False  # what the latent attention layers give is kept and judged too (kgen.gates.modeleval.heads)

    @property
    def rows(self) -> int:
        return self.requests * self.q

    @property
    def exact(self) -> bool:
        """Whether float64 runs it too."""
        return self.kind in ROWS or (self.kind == FREE and not self.other)

    @property
    def name(self) -> str:
        parts = [self.kind, self.way.label, f"t{self.rows}"]
        parts += [f"q{self.q}"] if self.q > 1 else []
        parts += [f"n{self.count}"] if self.count != self.requests else []
        parts += [self.drafter] if self.drafter else []
        parts += ["drift"] if self.states else []
        parts += ["heads"] if self.heads else []
        parts += [f"s{self.steps}"] if self.kind == FREE else []
        return " ".join(parts)


@dataclass(frozen=True)
class Seeds:
    """Secret until the candidate is fixed. `draws` differs between the sides of a comparison."""

    SCHEMA: ClassVar[str] = "kgen.eval-seeds/1"
    weights: int
    tokens: int
    draws: int = 0
