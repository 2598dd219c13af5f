"""Quick ranking of many artefacts: median time in a CUDA graph over rotating sets, and distance to the stock op.

    rank(specs, cache=..., device="cuda") -> list[RankRow], in the order of `specs`

A search aid, not a gate and never evidence: here, and only here, the stock op sees the same inputs in the same process.
An artefact that crashes or hangs is marked, and the others are ranked again without it.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgen.contract import Role, relative_l2
from kgen.gates import timing
from kgen.gates.gpu.quarantine import DeviceLost
from kgen.gates.runner import subject
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.host import Outcome, running
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.ops import REGISTRY
from kgen.records import Problem, from_json, to_json

REPETITIONS = 30
STALL_SECONDS = 20.0


@dataclass(frozen=True)
class RankRow:
    """`status`: ok, fault, crashed, hung, error or lost. µs a call; `rel_l2` is the largest over the outputs."""

    spec: LoadSpec
    status: str
    us: float = float("inf")
    us_best: float = float("inf")
    stock_us: float = float("inf")  # eager stock in the same rotation, for orientation
    rel_l2: float = float("inf")
    message: str = ""


def rank(
    specs: Sequence[LoadSpec],
    *,
    cache: Path,
    device: str = "cuda",
    seed: int = 1,
    repetitions: int = REPETITIONS,
    deadline: float = 300.0,
    stall: float = STALL_SECONDS,
) -> list[RankRow]:
    """Rank artefacts; those of different problems are timed problem by problem."""
    rows: dict[int, RankRow] = {}
    left = list(range(len(specs)))
    while left:
        job = {
            "items": [[i, to_json(specs[i])] for i in left],
            "cache": str(cache),
            "device": device,
            "seed": seed,
            "repetitions": repetitions,
        }
        try:
            with running("rank", job, deadline=deadline, stall=stall) as outcome:
                rows.update(_rows(specs, outcome))
                culprit = _culprit(outcome, left)
        except DeviceLost as lost:  # under which of them is not known: none is tried again here
            return [rows.get(i, RankRow(s, "lost", message=str(lost))) for i, s in enumerate(specs)]
        if outcome.status != "done" and culprit is not None:
            rows[culprit] = RankRow(specs[culprit], outcome.status, message=outcome.message)
        left = [i for i in left if i not in rows] if outcome.status != "done" and culprit is not None else []
    last = outcome.message if specs else ""
    return [rows.get(i, RankRow(s, "lost", message=last)) for i, s in enumerate(specs)]


def _rows(specs: Sequence[LoadSpec], outcome: Outcome) -> dict[int, RankRow]:
    return {
        int(r["index"]): RankRow(
            specs[int(r["index"])],
            str(r["status"]),
            us=statistics.median(r["us"]) if r.get("us") else float("inf"),
            us_best=min(r["us"]) if r.get("us") else float("inf"),
            stock_us=statistics.median(r["stock_us"]) if r.get("stock_us") else float("inf"),
            rel_l2=float(r.get("rel_l2", "inf")),
            message=str(r.get("message", "")),
        )
        for r in outcome.records
    }


def _culprit(outcome: Outcome, left: Sequence[int]) -> int | None:
    head = outcome.where.removeprefix("after ").split(" ", 1)[0].removeprefix("#")
    return (
        int(head) if outcome.status in ("fault", "crashed", "hung") and head.isdigit() and int(head) in left else None
    )


def run(job: Mapping[str, Any], out: Out) -> dict[str, Any]:
    """Runner side."""
    items = [(int(i), from_json(LoadSpec, value)) for i, value in job["items"]]
    groups: dict[str, list[tuple[int, LoadSpec]]] = {}
    for index, spec in items:
        groups.setdefault(spec.problem.key, []).append((index, spec))
    clock = timing.Clock(str(job["device"]))
    timing.refuse_persisting_l2(clock.device)
    for group in groups.values():
        _rank_group(group, job, out, clock)
    return {}


@torch.no_grad()
def _rank_group(group: Sequence[tuple[int, LoadSpec]], job: Mapping[str, Any], out: Out, clock: timing.Clock) -> None:
    problem, device = group[0][1].problem, str(job["device"])
    op = REGISTRY.get(problem.op)
    sets = _filled_sets(problem, device, int(job["seed"]))
    count = timing.calls_for(len(sets))
    stock = op.stock(problem)
    # timing leaves other states than these
    before = {n: sets[0].buffers[n].tensor.clone() for n in sets[0].names(Role.STATE)}
    want = stock(sets[0].values())
    sides = [
        timing.Side(
            "stock", timing.capture([lambda s=s: stock(s.values()) for s in sets] * (count // len(sets)), device), count
        )
    ]
    distances: dict[int, float] = {}
    for index, spec in group:
        where = f"#{index} {spec.label} {problem.key}"
        out.at(f"load {where}")
        loaded = subject.load(spec, Path(job["cache"]))
        own = [s.sibling(spec.workspaces) for s in sets]
        with out.candidate(where, device):
            own[0].load(before)
            own[0].poison()
            loaded.bind(own[0])()
        distances[index] = max(
            relative_l2(own[0].buffers[n].tensor, want[n]) for n in own[0].names(Role.OUT, Role.STATE)
        )
        with out.candidate(where, device):
            replay = timing.capture([loaded.bind(s) for s in own] * (count // len(own)), device)
            replay()
        sides.append(timing.Side(str(index), replay, count))
    with out.candidate(f"timing {problem.key}", device):
        times = timing.interleave(sides, int(job["repetitions"]), clock, random.Random(int(job["seed"])))
    for index, _ in group:
        row = {"index": index, "status": "ok", "rel_l2": str(distances[index])}
        out.record({**row, "us": times[str(index)], "stock_us": times["stock"]})


def _filled_sets(problem: Problem, device: str, seed: int) -> list[BufferSet]:
    op = REGISTRY.get(problem.op)
    first = BufferSet(op, problem, device)
    sets = [first] + [
        BufferSet(op, problem, device) for _ in range(timing.sets_needed(first.nbytes, timing.l2_bytes(device)) - 1)
    ]
    for number, buffers in enumerate(sets):
        buffers.load(op.inputs(problem, "normal", seed + number, device))
    return sets
