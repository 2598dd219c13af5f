"""Launch attestation by batch: what sat in which seats, and that launches = calls x steps, no more and no less.

Expected are the calls of the step itself (census) times the launches in the build record. Counted is where the object
meets the runtime: eager steps; or warm-up, capture and none from the host in replays, cross-checked with the kernel
names that the profiler saw there. Switched off, a run must be the stock run: the same seats, kernels and tokens.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.distance import best
from kgen.gates.modeleval.exercise import GRAPH, OTHER, Exercise
from kgen.gates.modeleval.sides import CANDIDATE, MUTANT, Left, Part, Record
from kgen.gates.modeleval.stage import REPLAYS, WARMUPS
from kgen.records import BuildRecord

Launches = Mapping[str, Mapping[str, int]]  # problem key -> kernel -> launches
Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """Of one batch: seats of built problems, seats of stock ops, launches of one step."""

    promoted: Mapping[str, int]
    stock: Mapping[str, int]
    per_step: Launches


def expected(part: Part, exercise: Exercise, batch: Batch, census: Census) -> Expected:
    """What the build records of a part make of one step of a batch."""
    calls = census.calls(exercise.way, int(batch["requests"]), int(batch["q"]))
    builds = {b.record.problem.key: b.record for b in part.builds} if part.kind in (CANDIDATE, MUTANT) else {}
    promoted = {key: n for key, n in calls.items() if key in builds}
    per_step = {key: _times(builds[key], n) for key, n in promoted.items()}
    return Expected(promoted, {k: n for k, n in calls.items() if k not in builds}, per_step)


def _times(build: BuildRecord, calls: int) -> dict[str, int]:
    return {kernel: n * calls for kernel, n in build.launch_counts().items()}


def faults(part: Part, left: Left, census: Census) -> list[str]:
    """One line for each count of a part that is not as expected."""
    lines: list[str] = []
    for exercise in part.exercises:
        for mode in part.modes(exercise):
            record = left.of(exercise, mode)
            wanted = [expected(part, exercise, batch, census) for batch in record.batches]
            if part.kind == CANDIDATE and record.batches and not any(w.promoted for w in wanted):
                lines.append(f"{exercise.name} {mode}: no build of the candidate sits in any seat")
            for batch, want in zip(record.batches, wanted, strict=True):
                lines += [f"{exercise.name} {line}" for line in _batch(batch, want, _profiled(exercise, mode))]
            if (
                record.batches
                and exercise.kind in ("forced", "filled")
                and record.batches[0]["steps"] != exercise.steps
            ):
                lines.append(f"{exercise.name} {mode}: {record.batches[0]['steps']} steps, planned {exercise.steps}")
    return lines


def _profiled(exercise: Exercise, mode: str) -> bool:
    return exercise.profiled and mode == GRAPH


def _batch(batch: Batch, want: Expected, profiled: bool) -> list[str]:
    where = f"{batch['mode']} q{batch['q']} of {batch['requests']}"
    lines = []
    for name, seats in (("promoted", want.promoted), ("stock", want.stock)):
        if dict(batch[name]) != dict(seats):
            lines.append(f"{where}: {name} seats {_odd(batch[name], seats)}, by the build records")
    if silent := [key for key, launches in want.per_step.items() if not launches]:
        return [*lines, f"{where}: the build record of {silent[0]} names no launch"]
    if batch["mode"] != GRAPH:
        return lines + _counts(where, batch["counts"], want.per_step, int(batch["steps"]))
    lines += _counts(f"{where}, warm-up", batch["warm"], want.per_step, WARMUPS)
    lines += _counts(f"{where}, capture", batch["captured"], want.per_step, 1)
    if batch["counts"]:
        lines.append(f"{where}: launched from the host during {batch['steps']} replays: {dict(batch['counts'])}")
    return lines + (_seen(where, batch.get("profiled", ()), want.per_step) if profiled else [])


def _counts(where: str, found: Launches, per_step: Launches, steps: int) -> list[str]:
    want = {key: {k: n * steps for k, n in launches.items()} for key, launches in per_step.items() if steps}
    if {key: dict(launches) for key, launches in found.items()} == want:
        return []
    key = next(k for k in (*found, *want) if found.get(k) != want.get(k))
    return [
        f"{where}: {key} counted {_short(found.get(key, {}))}, expected {_short(want.get(key, {}))} in {steps} steps"
    ]


def _seen(where: str, rounds: Iterable[Mapping[str, int]], per_step: Launches) -> list[str]:
    """One round must show exactly the expected launches; none may show more."""
    want: Counter[str] = Counter()
    for launches in per_step.values():
        want.update({kernel: n * REPLAYS for kernel, n in launches.items()})
    seen = [known(counts, set(want)) for counts in rounds]
    more = [s for s in seen if any(n > want[k] for k, n in s.items())]
    if not more and any(s == want for s in seen):
        return []
    first = (more or seen or [{}])[0]
    return [f"{where}: the profiler saw {_short(first)} in {REPLAYS} replays, expected {_short(want)}"]


def known(counts: Mapping[str, int], kernels: set[str]) -> dict[str, int]:
    """The counts of these kernels only; a profiler may append a signature to a name."""
    found: Counter[str] = Counter()
    for name, n in counts.items():
        plain = name if name in kernels else name.split("(", 1)[0]
        if plain in kernels:
            found[plain] += n
    return dict(found)


def blind(part: Part, left: Left) -> list[str]:
    """Graph replays in which a profiler saw no kernel at all, not even stock's: it attests nothing."""
    lines = []
    for exercise in (e for e in part.exercises if e.profiled):
        for record in (left.of(exercise, mode) for mode in part.modes(exercise) if mode == GRAPH):
            rounds = [counts for batch in record.batches for counts in batch.get("profiled", ())]
            if not any(rounds):
                lines.append(f"{part.name}: the profiler saw no kernel at all in replays of {exercise.name}")
    return lines


def stray(part: Part, left: Left, kernels: set[str]) -> list[str]:
    """Kernels of the candidate in a run that must not have any: by name, wherever the profiler looked."""
    lines = []
    for record in left.records.values():
        for batch in record.batches:
            for counts in batch.get("profiled", ()):
                if found := known(counts, kernels):
                    lines.append(f"{part.name}: {record.exercise} shows kernels of the candidate: {_short(found)}")
    return lines


def as_stock(part: Part, off: Left, stock: Left) -> list[str]:
    """Switched off, every greedy token is stock's, and some profiler round of each shows the same kernels."""
    lines = []
    for exercise in part.exercises:
        for mode in (m for m in part.modes(exercise) if not m.startswith(OTHER)):
            mine, theirs = off.of(exercise, mode), stock.of(exercise, mode)
            if not torch.equal(best(mine.tensors["logits"]), best(theirs.tensors["logits"])):
                lines.append(f"{exercise.name} {mode}: switched off, other tokens come out than in stock")
            lines += [f"{exercise.name} {mode}: {line}" for line in _same_trace(mine, theirs)]
    return lines


def _same_trace(mine: Record, theirs: Record) -> list[str]:
    for a, b in zip(mine.batches, theirs.batches, strict=True):
        rounds, others = a.get("profiled", ()), b.get("profiled", ())
        if (rounds or others) and not any(x == y for x in rounds for y in others):
            extra = Counter(rounds[-1] if rounds else {})
            extra.subtract(others[-1] if others else {})
            odd = {k: n for k, n in extra.items() if n}
            return [f"switched off, other kernels run than in stock: {_short(odd)}"]
    return []


def summary(parts: Sequence[Part], left: Mapping[str, Left], census: Census) -> dict[str, Any]:
    """For a report: by model and batch size, calls of a step by op, promoted and stock, and steps by mode."""
    shown: dict[str, Any] = {}
    for part in (p for p in parts if p.kind == CANDIDATE):
        for exercise in part.exercises:
            for mode in part.modes(exercise):
                for batch in left[part.name].of(exercise, mode).batches:
                    want = expected(part, exercise, batch, census)
                    size = f"{batch['requests']}x{batch['q']}"
                    entry = shown.setdefault(part.model, {}).setdefault(f"{exercise.way.label} {size}", {})
                    entry["promoted"], entry["stock"] = _by_op(batch["promoted"]), sum(batch["stock"].values())
                    entry["launches_per_step"] = sum(
                        n for launches in want.per_step.values() for n in launches.values()
                    )
                    entry[f"{mode} steps"] = entry.get(f"{mode} steps", 0) + int(batch["steps"])
    return shown


def _by_op(seats: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for key, n in seats.items():
        found[key.split("/", 1)[0]] += n
    return dict(found)


def _odd(found: Mapping[str, int], want: Mapping[str, int]) -> str:
    key = next(k for k in (*found, *want) if found.get(k) != want.get(k))
    return f"are {found.get(key, 0)} of {key} instead of {want.get(key, 0)}"


def _short(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} x {kernel[:48]}" for kernel, n in counts.items()) or "nothing"
