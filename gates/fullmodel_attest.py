"""Launch attestation: the candidate's kernels ran as often as its build records say, no more and no less.

Counted where the object meets the runtime (at capture, times the replays), cross-checked with the kernel names that the
profiler saw in graph replays. The stock run must show none of them; with the artefacts loaded but switched off the run
must be the stock run: same tokens, same kernels, same counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from kgen.gates.fullmodel_plan import REPLAYS, Batch
from kgen.gates.runner.model_job import WARMUPS
from kgen.model.session import lowest_argmax
from kgen.records import BuildRecord

Record = Mapping[str, Any]
Counts = Mapping[str, int]


def expected_per_step(seats: Mapping[str, int], builds: Iterable[BuildRecord]) -> Counter[str]:
    """Kernel -> launches of one decode step. `seats`: problem key -> uses a step."""
    total: Counter[str] = Counter()
    for build in builds:
        for launch in build.launches:
            total[launch.kernel] += seats.get(build.problem.key, 0)
    return +total


def candidate_faults(batch: Batch, records: Iterable[Record], per_step: Counts) -> list[str]:
    """One line per count that is not as expected, for the records of one batch."""
    if not per_step:
        return [f"{batch.name}: the build records name no launch of this batch"]
    faults = []
    for record in records:
        where = f"{batch.name} {record['mode']}"
        if record["mode"] == "eager":
            faults += _counts(where, record["counts"], per_step, batch.decoded)
            continue
        faults += _counts(f"{where}, warm-up", record["warm"], per_step, WARMUPS)
        faults += _counts(f"{where}, capture", record["captured"], per_step, 1)
        if record["counts"]:
            faults.append(f"{where}: launched from the host during {batch.decoded} replays: {dict(record['counts'])}")
        faults += _profiled(where, record["profiled"], per_step)
    return faults


def stock_faults(name: str, records: Iterable[Record], kernels: Iterable[str]) -> list[str]:
    """The stock run launches none of the candidate's kernels, and the profiler sees none."""
    known = set(kernels)
    faults = []
    for record in records:
        seen = dict(record["counts"])
        for counts in record.get("profiled", ()):
            seen |= {k: n for k, n in _known(counts, known).items() if n}
        if seen:
            faults.append(f"{name} {record['mode']}: kernels of the candidate ran in the stock engine: {seen}")
    return faults


def trace_faults(name: str, off: Iterable[Record], stock: Iterable[Record]) -> list[str]:
    """Switched off, the run is the stock run: some profiler round of each shows the same kernels and counts."""
    faults = []
    for mine, theirs in zip(off, stock, strict=True):
        if mine["mode"] == "graph" and not any(a == b for a in mine["profiled"] for b in theirs["profiled"]):
            extra = Counter(mine["profiled"][-1])
            extra.subtract(theirs["profiled"][-1])
            odd = {k: n for k, n in extra.items() if n}
            faults.append(f"{name}: with the candidate switched off other kernels run than in stock: {odd}")
    return faults


def token_faults(name: str, off: Iterable[Record], stock: Iterable[Record]) -> list[str]:
    """Switched off, every greedy token is stock's."""
    return [
        f"{name} {mine['mode']}: with the candidate switched off other tokens come out than in stock"
        for mine, theirs in zip(off, stock, strict=True)
        if not torch.equal(lowest_argmax(mine["logits"]), lowest_argmax(theirs["logits"]))
    ]


def summary(per_step: Counts, batch: Batch, records: Iterable[Record]) -> dict[str, Any]:
    """The figures that a report shows."""
    graph = [r for r in records if r["mode"] == "graph"]
    return {
        "per_step": dict(per_step),
        "eager_steps": batch.decoded,
        "captured": dict(graph[0]["captured"]) if graph else {},
        "profiled": [_known(counts, set(per_step)) for counts in graph[0]["profiled"]] if graph else [],
        "replays_profiled": REPLAYS if graph else 0,
    }


def _counts(where: str, found: Counts, per_step: Counts, steps: int) -> list[str]:
    want = {kernel: n * steps for kernel, n in per_step.items()}
    if dict(found) == want:
        return []
    return [f"{where}: counted {_short(found)}, the build record says {_short(want)} for {steps} steps"]


def _profiled(where: str, rounds: Iterable[Counts], per_step: Counts) -> list[str]:
    """One round must show exactly the expected launches; none may show more."""
    want = {kernel: n * REPLAYS for kernel, n in per_step.items()}
    seen = [_known(counts, set(per_step)) for counts in rounds]
    more = [s for s in seen if any(n > want[k] for k, n in s.items())]
    if not more and any(s == want for s in seen):
        return []
    return [
        f"{where}: the profiler saw {_short((more or seen or [{}])[0])} in {REPLAYS} replays, expected {_short(want)}"
    ]


def _known(counts: Counts, kernels: set[str]) -> dict[str, int]:
    """The counts of these kernels only; a profiler may append a signature to a name."""
    found: Counter[str] = Counter()
    for name, n in counts.items():
        plain = name if name in kernels else name.split("(", 1)[0]
        if plain in kernels:
            found[plain] += n
    return dict(found)


def _short(counts: Counts) -> str:
    return ", ".join(f"{n} x {kernel[:48]}" for kernel, n in counts.items()) or "nothing"
