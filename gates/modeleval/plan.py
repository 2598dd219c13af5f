"""The plan: which exercises judge these builds, from one table of sizes by device that can be scaled.

Seconds of each process on one H200 for moe_shared at all its dims and bins, seven processes at a time, 180 s in all
(`seconds` in the evidence of the promotion made 2026-11-30, where each exercise has its own):

                   stock  candidate  float64   longest exercises
    slice-tp8        124        124      140   drift 26, 26, 73; free 19, 19, 18
    slice-tp16        56         60       42
    nano             173        171       32   tasks 63, 62; free 68, 57
    slice-tp8: switched off 49, mutants 26 and 19; judging 6

Processes that share a GPU take turns on it: what keeps it busy adds up, and a wait for it lasts as long as the turns of
all others. `scaled` shrinks or grows what repeats; it leaves what a claim needs (contexts, 512 steps of drift, 4,096
tokens, 4,000 items) alone.

Everything runs as CUDA graphs; the narrow, middle, wide and drafted forced exercises run eagerly too, which says
whether a graph is to blame. Prompts are read by the stock ops, as an engine's prefill does; promoted kernels answer.
Drift and free generation are measured at the first dims only. Launches are counted in every batch; the profiler
cross-checks a few. A CPU runs a brief plan of the same parts that shows that the rules separate; it claims nothing
about a model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kgen.gates.contract import few_bins
from kgen.gates.modeleval.census import WIDTHS, Census
from kgen.gates.modeleval.exercise import (
    BAD,
    CONSTRAINED,
    EAGER,
    FILLED,
    FORCED,
    FREE,
    GRAPH,
    LONG,
    LOOKUP,
    SAMPLING,
    TASKS,
    VERIFY,
    Exercise,
    Way,
)
from kgen.gates.modeleval.given import ROUTER
from kgen.gates.modeleval.heads import CONTEXT, QUERY
from kgen.model.decoder.config import CONFIGS
from kgen.records import Problem

SMALL, DRAWN = "nano", "nano-random"
SLICES = {c.dims: c.name for c in CONFIGS.values() if c.name not in (SMALL, DRAWN)}  # dims -> configuration


@dataclass(frozen=True)
class Sizes:
    """One row of the table. Steps, tokens, sequences and items; 0 leaves a part out."""

    rows: int  # forced: rows of a batch
    least: int  # forced: steps of a batch, so that what one router decision upsets does not last for all of them
    drift: tuple[int, int, int]  # steps, sequences, checkpoints
    filled: tuple[int, int, int]  # context, sequences, steps
    free: tuple[int, int]  # tokens, sequences; on a slice
    long_free: tuple[int, int, int]  # tokens, sequences, tokens a verify step of the yardstick; on nano
    tasks: tuple[int, int]  # items in all, sequences of a batch
    long: tuple[int, int, int]  # length, items, tokens of an answer
    verify: tuple[int, int]  # tokens, sequences
    constrained: tuple[int, int, int]  # items, sequences, tokens at most
    sampling: tuple[int, int, int]  # tokens of a context, sequences, draws from each
    modes: tuple[str, ...]  # of the brief forced exercises; all others run in the last one
    profiled: bool
    far: int = 0  # length of an eighth of the recall items
    depth: int = 0  # layers kept of every model, 0: all
    shortest: bool = False  # items as short as they can be


TABLE: Mapping[str, Sizes] = {
    "cuda": Sizes(
        rows=64,
        least=4,
        drift=(512, 2, 8),
        filled=(131_072, 2, 8),
        free=(64, 16),
        long_free=(4096, 16, 4),
        tasks=(4160, 64),
        long=(16_384, 16, 16),
        verify=(64, 8),
        constrained=(64, 64, 192),
        sampling=(64, 64, 64),
        modes=(EAGER, GRAPH),
        profiled=True,
        far=2048,
    ),
    "cpu": Sizes(
        rows=96,
        least=12,
        drift=(32, 4, 8),
        filled=(256, 2, 3),
        free=(12, 8),
        long_free=(0, 0, 0),
        tasks=(20, 4),
        long=(64, 4, 4),
        verify=(8, 2),
        constrained=(4, 4, 48),
        sampling=(16, 4, 128),
        modes=(EAGER,),
        profiled=False,
        shortest=True,
    ),
}


def scaled(sizes: Sizes, factor: float) -> Sizes:
    """The same plan with `factor` times the rows, free tokens and draws."""

    def of(number: int) -> int:
        return max(1, math.ceil(number * factor)) if number else 0

    free, sampling = sizes.free, sizes.sampling
    return replace(
        sizes,
        rows=of(sizes.rows),
        least=of(sizes.least),
        free=(of(free[0]), *free[1:]),
        verify=(of(sizes.verify[0]), sizes.verify[1]),
        sampling=(*sampling[:2], of(sampling[2])),
    )


@dataclass(frozen=True)
class Plan:
    """`models`: model name (a config, e.g. slice-tp8) -> its exercises. `unseated`: built, but in no decode model."""

    models: Mapping[str, tuple[Exercise, ...]]
    not_run: Mapping[str, str]  # part -> why
    unseated: tuple[str, ...]


def model_names(problems: Iterable[Problem], small: str, device: str) -> list[str]:
    """Configurations whose seats these builds fit, the trained one last; on a CPU the small one only, both ways."""
    dims = {p.dims for p in problems}
    if device == "cpu":
        return [DRAWN, SMALL] if small in dims else []
    return [name for known, name in SLICES.items() if known in dims] + ([SMALL] if small in dims else [])


def plan(problems: Sequence[Problem], small: str, sizes: Sizes, device: str, census: Census) -> Plan:
    """Exercises for builds of one arch; none where no decode model has seats for them."""
    names = model_names(problems, small, device)
    models: dict[str, tuple[Exercise, ...]] = {}
    not_run: dict[str, str] = {}
    for name in names:
        mine = [p for p in problems if _sits(p, name, small, census)]
        planner = Planner(name, mine, sizes, census, not_run, first=name == names[0])
        models[name] = planner.trained() if name == SMALL else planner.drawn()
    keys = {p.key for p in problems}
    covered = {key for exercises in models.values() for e in exercises for key in census.seats(e, keys)}
    return Plan(models, not_run, tuple(sorted(keys - covered)))


def _sits(problem: Problem, name: str, small: str, census: Census) -> bool:
    if name in (SMALL, DRAWN):
        return problem.dims == small
    dims = next(d for d, slice_name in SLICES.items() if slice_name == name)
    return census.registry.get(problem.op).own_name(dims) == problem.dims


class Planner:
    """The exercises of one model, at bins that were built."""

    def __init__(
        self,
        name: str,
        problems: Sequence[Problem],
        sizes: Sizes,
        census: Census,
        not_run: dict[str, str],
        first: bool,
    ) -> None:
        self.name, self.problems, self.sizes, self.census, self.not_run = name, problems, sizes, census, not_run
        self.first, self.last = first, sizes.modes[-1:]
        base = Way(name, sizes.depth)
        found = [census.way_for(p, base) for p in _one_a_kind(problems)]
        self.way, self.q = next((f for f in found if f is not None), (base, 1))
        self.bins = sorted({p.tokens for p in problems})

    def drawn(self) -> tuple[Exercise, ...]:
        """Everything that is measured against float64; but for a router's builds with given experts."""
        chosen = any(p.op == ROUTER for p in self.problems)
        return tuple(replace(e, given=not chosen) for e in self._measured())

    def _measured(self) -> list[Exercise]:
        s = self.sizes
        found = [*self._forced(), *self._padded(), *self._widths()]
        found += self._leftover(found)
        context, sequences, steps = s.filled
        found += self._fit(Exercise(FILLED, self.way, sequences, sequences, steps, self.last, self.q, context=context))
        found += self._heads() if any(p.op == QUERY for p in self.problems) else []
        if not self.first:
            self.not_run[f"drift and free {self.name}"] = "measured at the first dims"
            return found
        steps, sequences, checkpoints = s.drift
        found += self._fit(Exercise(
            FORCED, self.way, sequences, sequences, steps, self.last, q=self.q, every=16, states=checkpoints
        ))  # fmt: skip
        return [*found, *self._free(*s.free, 0)]

    def trained(self) -> tuple[Exercise, ...]:
        """What needs a model that answers."""
        s = self.sizes
        found = [] if s.depth else [*self._forced(), *self._widths()]
        found += [] if s.depth else self._leftover(found)
        items, sequences = s.tasks
        found += self._fit(Exercise(TASKS, self.way, sequences, sequences, 0, self.last, context=s.far, items=items))
        length, items, tokens = s.long
        found += self._fit(Exercise(LONG, self.way, items, items, tokens, self.last, context=length, items=items))
        found += self._free(*s.long_free)
        tokens, sequences = s.verify
        for q, drafter in product(WIDTHS[1:], (LOOKUP, BAD)):
            found += self._fit(Exercise(
                VERIFY, self.way, sequences, sequences, tokens, self.last, q=q, drafter=drafter
            ))  # fmt: skip
        items, sequences, tokens = s.constrained
        found += self._fit(Exercise(CONSTRAINED, self.way, sequences, sequences, tokens, self.last, items=items))
        steps, sequences, draws = s.sampling
        found += self._fit(Exercise(SAMPLING, self.way, sequences, sequences, steps, self.last, draws=draws))
        return tuple(found)

    def _forced(self) -> list[Exercise]:
        brief = set(few_bins(self.bins))
        return [e for b in self.bins for e in self._given(self.way, b, 1, b, b in brief)]

    def _given(self, way: Way, requests: int, q: int, count: int, brief: bool) -> list[Exercise]:
        s = self.sizes
        steps = max(s.least, -(-s.rows // (count * q)))
        exercise = Exercise(
            FORCED, way, requests, count, steps, s.modes if brief else self.last, q=q, brief=brief,
            profiled=s.profiled and brief and self._shown(requests * q, q),
        )  # fmt: skip
        return [exercise] if self._seated(exercise) else []

    def _shown(self, rows: int, q: int) -> bool:
        """What a profiler cross-checks, seconds a batch: a wide one of each model; in the first a narrow one as well,
        and one with drafts."""
        wide = rows == self.bins[-1]
        if self.first:
            return (wide or rows == self.bins[0]) and q in (self.q, WIDTHS[1])
        return wide and q == self.q

    def _heads(self) -> list[Exercise]:
        """Where a query's builds sit, at a middle bin that mutants are built for: what the attention gives as well."""
        s, few = self.sizes, [b for b in few_bins(self.bins) if b % self.q == 0]
        if not few:
            return []
        rows = few[len(few) // 2]
        requests, steps = rows // self.q, max(s.least, -(-s.rows // rows))
        exercise = Exercise(
            FILLED, self.way, requests, requests, steps, self.last, q=self.q, context=CONTEXT, brief=True, heads=True
        )
        return [exercise] if self._seated(exercise) else []

    def _padded(self) -> list[Exercise]:
        """The pack's padded counts in their bins; if none fits, three quarters of the widest bin."""
        op = self.census.registry.get(self.problems[0].op)
        pairs = [(op.bin_for(n), n) for n in op.pack.padded if op.bin_for(n) in self.bins]
        widest = self.bins[-1]
        pairs = pairs or ([(widest, max(1, 3 * widest // 4))] if widest > 1 else [])
        return [e for rows, count in pairs for e in self._given(self.way, rows, 1, count, False)]

    def _widths(self) -> list[Exercise]:
        """Verify widths at a wide bin that they divide."""
        wide = {q: [b for b in self.bins if b % q == 0][-1:] for q in WIDTHS[1:]}
        return [e for q, bins in wide.items() for b in bins for e in self._given(self.way, b // q, q, b // q, True)]

    def _leftover(self, planned: Iterable[Exercise]) -> list[Exercise]:
        """Built problems that sit in another model than the usual one, or only at a verify width."""
        done = {key for e in planned for key in self.census.calls(e.way, e.requests, e.q)}
        found: list[Exercise] = []
        for problem in self.problems:
            if problem.key in done:
                continue
            at = self.census.way_for(problem, self.way) or self.census.way_for(problem, Way(self.name, self.way.depth))
            if at is not None:
                requests = problem.tokens // at[1]
                found += self._given(at[0], requests, at[1], requests, True)
                done |= set(self.census.calls(at[0], requests, at[1]))
        return found

    def _free(self, tokens: int, sequences: int, other: int) -> list[Exercise]:
        if not tokens:
            return []
        return self._fit(Exercise(FREE, self.way, sequences, sequences, tokens, self.last, other=other))

    def _fit(self, wanted: Exercise) -> list[Exercise]:
        """At the built bin nearest to the wanted rows; nothing, and a reason, where no build sits."""
        if not wanted.requests:
            return []
        for rows in sorted(self.bins, key=lambda b: abs(math.log(b / wanted.rows))):
            if rows % wanted.q:
                continue
            requests = rows // wanted.q
            fitted = replace(wanted, requests=requests, count=requests, shortest=self.sizes.shortest)
            if self._seated(fitted):
                return [fitted]
        self.not_run[wanted.name] = f"no build sits in this model at {wanted.q} tokens a request"
        return []

    def _seated(self, exercise: Exercise) -> bool:
        """Whether a build sits there, at the exercise's own width."""
        return any(p.key in self.census.calls(exercise.way, exercise.requests, exercise.q) for p in self.problems)


def _one_a_kind(problems: Iterable[Problem]) -> list[Problem]:
    """One problem of each op and axes."""
    kinds = {(p.op, tuple(sorted(p.axes.items()))): p for p in problems}
    return list(kinds.values())
