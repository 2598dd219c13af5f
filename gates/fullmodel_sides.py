"""The processes of the full-model gate and what they leave: started side by side, read back, set against float64."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kgen.gates import fullmodel_stats as stats
from kgen.gates.fullmodel_plan import PROMPT, Batch, Plan, token_ids
from kgen.gates.fullmodel_rules import Side
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import LoadSpec
from kgen.model.dims import model_dims
from kgen.model.reference import Reference
from kgen.model.step import Output
from kgen.model.weights import checksum, draw
from kgen.ops import REGISTRY
from kgen.records import to_json

Running = Callable[..., AbstractContextManager[Outcome]]
STALL = 90.0  # seconds without a word from a process
TENSORS = ("logits", "hidden", "generated")


@dataclass(frozen=True)
class Left:
    """What one process left: status and message of the runner's host, records with their tensors read in (on CPU)."""

    status: str
    message: str
    weights: int = 0
    records: tuple[Mapping[str, Any], ...] = ()

    def of(self, batch: Batch) -> list[Mapping[str, Any]]:
        """The records of one batch that decoded it as planned."""
        return [r for r in self.records if r["batch"] == batch.name and r["mode"] != "other"]

    def recomposed(self, batch: Batch) -> torch.Tensor | None:
        return next((r["generated"] for r in self.records if r["batch"] == batch.name and r["mode"] == "other"), None)


def start(
    pool: ThreadPoolExecutor,
    running: Running,
    plan: Plan,
    specs: Sequence[LoadSpec],
    *,
    enabled: bool,
    cache: Path,
    deadline: float,
) -> "Future[Left]":
    """Queue one process. `deadline` is a time.monotonic() value."""
    job = {
        "plan": to_json(plan),
        "loads": [to_json(s) for s in specs],
        "enabled": enabled,
        "cache": str(cache),
        "device": plan.device,
    }
    return pool.submit(_run, running, job, deadline, _bytes(plan))


def _bytes(plan: Plan) -> int:
    dims = model_dims(plan.dims)
    modes = 2 if plan.graph else 1
    return sum(b.steps * b.count for b in plan.batches) * (dims.vocab + dims.hidden) * 2 * modes


def _run(running: Running, job: Mapping[str, Any], deadline: float, need: int) -> Left:
    left = max(1.0, deadline - time.monotonic())
    with running("model", job, deadline=left, stall=STALL, need_bytes=need) as outcome:
        if outcome.status != "done":
            return Left(outcome.status, outcome.message)
        first, *rest = outcome.records
        records = tuple({k: outcome.tensor(v) if k in TENSORS else v for k, v in r.items()} for r in rest)
        return Left(outcome.status, outcome.message, int(first["weights"]), records)


@dataclass
class Answers:
    """The float64 side of one model: computed once a batch, kept on the device."""

    plan: Plan
    weights: int = 0
    _outputs: dict[str, Output] = field(default_factory=dict)
    _generated: dict[str, torch.Tensor] = field(default_factory=dict)

    def compute(self) -> None:
        """Decode all batches of the plan in float64."""
        dims = model_dims(self.plan.dims)
        drawn = draw(dims, self.plan.weight_seed, self.plan.device)
        self.weights = checksum(drawn)
        reference = Reference(dims, drawn, self.plan.arch, REGISTRY)
        for batch in self.plan.batches:
            ids = token_ids(self.plan, batch, dims.vocab, self.plan.device)
            session = reference.session(batch.tokens, batch.count)
            self._outputs[batch.name] = session.teacher_forced(ids)
            if batch.generate:
                self._generated[batch.name] = session.generate(ids[:PROMPT], batch.generate)

    def side(self, left: Left, batches: Sequence[Batch], generation: bool) -> Side:
        """A process's results against float64; the free generation counts in the last mode that was run."""
        rows, diverged = {}, {}
        for batch in batches:
            want = self._outputs[batch.name]
            for record in left.of(batch):
                device = want.logits.device
                got = Output(record["logits"].to(device), record["hidden"].to(device))
                rows[batch.name, str(record["mode"])] = stats.rows(got, want)
                if generation and batch.generate:
                    mine = record["generated"].to(device)
                    diverged[batch.name] = stats.first_divergence(mine, self._generated[batch.name])
        return Side(rows, diverged)


def recomposition(plan: Plan, candidate: Left, stock: Left) -> dict[str, Any]:
    """Free generation beside stock's: the candidate, and stock itself in batches of another composition.

    Steps to the first difference; `generate` where there is none. Shown, not judged: how far two stock runs lie apart
    depends on whether the library changes its algorithm between the two bins.
    """
    shown: dict[str, Any] = {}
    for batch in plan.batches:
        other = stock.recomposed(batch)
        if other is None:
            continue
        own = stock.of(batch)[-1]["generated"]
        mine = stats.first_divergence(candidate.of(batch)[-1]["generated"], own)
        theirs = stats.first_divergence(other, own)
        shown[batch.name] = {
            "generate": batch.generate,
            "other_bin": batch.other,
            "candidate": {"median": float(mine.double().median()), "never": int((mine == batch.generate).sum())},
            "stock_other": {"median": float(theirs.double().median()), "never": int((theirs == batch.generate).sum())},
        }
    return shown
