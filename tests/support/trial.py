"""A trial of the model evaluation on made-up records: `trial(...)` with processes that have ended, `run(trial)`."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from support.modeleval import ARCH, Stand, stand

from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import EAGER, FORCED, GRAPH, Exercise, Seeds, Way
from kgen.gates.modeleval.plan import SMALL, Plan
from kgen.gates.modeleval.sides import FLOAT64, MUTANT, OFF, STOCK, Left, Part, Record, Starter
from kgen.gates.modeleval.stage import REPLAYS
from kgen.gates.modeleval.trial import Trial, Verdict
from kgen.ops import REGISTRY

DRAWN, KERNEL, DEFECTS = "nano-random", "gemm_kernel", ("tile_scale", "drop_last_k")
CENSUS = Census(REGISTRY, ARCH)
BRIEF = Exercise(FORCED, Way(DRAWN), 4, 4, 12, (EAGER, GRAPH), brief=True, profiled=True)
PLAIN = Exercise(FORCED, Way(DRAWN), 8, 8, 12, (EAGER,))
TRAINED = Exercise(FORCED, Way(SMALL), 4, 4, 12, (EAGER,))
BUILDS = (stand("x", 4, kernels=[KERNEL]), stand("x", 8, kernels=[KERNEL]))
MUTANTS = tuple(stand(d, 4, d, kernels=[f"{d}_kernel"]) for d in DEFECTS)
KERNELS = {"candidate": KERNEL, "off": KERNEL, **{d: f"{d}_kernel" for d in DEFECTS}}
VOCAB, HIDDEN = 512, 256


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@cache
def tensors(steps: int, count: int, noise: float, seed: int) -> dict[str, torch.Tensor]:
    """Rows this far from the exact ones, relatively; one token wins everywhere."""
    rows = steps, count
    logits, hidden = 3 * normal(1, *rows, VOCAB), normal(2, *rows, HIDDEN)
    logits[..., 7] = 15
    return {
        "logits": logits * (1 + noise * normal(seed, *logits.shape)),
        "hidden": hidden * (1 + noise * normal(seed + 1, *hidden.shape)),
    }


NOISE = {FLOAT64: (0.0, 0), STOCK: (0.01, 10), OFF: (0.01, 10), "candidate": (0.01, 20), MUTANT: (0.1, 30)}


def batch(part: Part, exercise: Exercise, mode: str) -> dict[str, Any]:
    """What an honest process leaves of one batch, by the census and one launch a call."""
    calls = CENSUS.calls(exercise.way, exercise.requests, exercise.q)
    own = {b.record.problem.key: b.record for b in part.builds} if part.kind in ("candidate", MUTANT) else {}
    mine = {k: n for k, n in calls.items() if k in own}
    found: dict[str, Any] = {"mode": mode, "requests": exercise.requests, "q": exercise.q, "steps": exercise.steps}
    found |= {"promoted": mine, "stock": {k: n for k, n in calls.items() if k not in own}}

    def launches(steps: int) -> dict[str, dict[str, int]]:
        return {k: {own[k].launches[0].kernel: n * steps} for k, n in mine.items()}

    if mode == EAGER:
        return {**found, "counts": launches(exercise.steps)}
    seen = {"sgemm": 40, **{name: n for counts in launches(REPLAYS).values() for name, n in counts.items()}}
    return {**found, "warm": launches(2), "captured": launches(1), "counts": {}, "profiled": [seen]}


def honest(part: Part) -> Left:
    records = {}
    for exercise in part.exercises:
        for mode in part.modes(exercise):
            values = tensors(exercise.steps, exercise.rows, *NOISE[part.kind])
            records[exercise.name, mode] = Record(
                exercise.name, mode, values, (batch(part, exercise, mode),) if part.kind != FLOAT64 else (), {}
            )
    return Left("done", "", {part.model: 5}, records, 2.0)


Change = Callable[[Part, Left], Left]


@dataclass(frozen=True)
class Desk(Starter):
    """A starter whose processes have ended already, with honest records or changed ones."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def start(self, pool: ThreadPoolExecutor, part: Part) -> "Future[Left]":
        self.order.append(part.name)
        change = self.changes.get(part.name, lambda part, left: left)
        return pool.submit(lambda: change(part, honest(part)))


MODELS = {DRAWN: (BRIEF, PLAIN), SMALL: (TRAINED,)}


def trial(
    models: Mapping[str, tuple[Exercise, ...]] | None = None,
    *,
    ops: tuple[str, ...] = ("moe_shared",),
    builds: tuple[Stand, ...] = BUILDS,
    mutants: tuple[Stand, ...] = MUTANTS,
    trained: bool = True,
    unseated: tuple[str, ...] = (),
    not_run: Mapping[str, str] | None = None,
    device: str = "cpu",
    **changes: Change,
) -> Trial:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    named = {name.replace("__", " ").replace("nano_random", DRAWN): change for name, change in changes.items()}
    desk = Desk(never, never, Seeds(1, 2, 3), device, ARCH, Path("c"), Path("weights.st"), 0.0, named)
    plan = Plan(dict(MODELS if models is None else models), dict(not_run or {}), unseated)
    return Trial(ops, builds, mutants, plan, CENSUS, desk, lambda item, said: True, trained)


def run(made: Trial) -> Verdict:
    with ThreadPoolExecutor(1) as pool:
        return made.run(pool)


def names(made: Trial) -> list[str]:
    return [part.name for part in made.parts()]
