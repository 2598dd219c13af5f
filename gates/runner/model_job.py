"""Runner job `model`: decode the plan's batches with one engine in the op's seats, and leave logits and counts.

The engine is the stock op, the candidate's artefacts, or the artefacts loaded but switched off. Records, in order:

    {"weights": checksum}
    {"batch": name, "mode": "eager" | "graph", "counts": {kernel: n}, "logits": ref, "hidden": ref, "generated": ref?}
    a graph record also has "warm", "captured" (host counts of these phases) and "profiled" (a list of rounds: every
    kernel name on the device with its count over REPLAYS replays)
    {"batch": name, "mode": "other", "generated": ref}     stock only: the same sequences in batches of another bin

Not covered: references and comparisons; this process knows no answer.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgen.contract import Values
from kgen.contract.op import Op
from kgen.gates.fullmodel_plan import PROMPT, REPLAYS, ROUNDS, Batch, Plan, token_ids
from kgen.gates.fullmodel_standins import STANDINS
from kgen.gates.runner.job import ARTEFACT, LoadSpec
from kgen.gates.runner.out import Out
from kgen.model.bind import OpCall, StockBinder, seat_call
from kgen.model.dims import model_dims
from kgen.model.session import Session
from kgen.model.step import DecodeStep
from kgen.model.weights import checksum, draw
from kgen.ops import REGISTRY
from kgen.records import Problem, from_json

WARMUPS = 2
Counts = dict[str, int]


@dataclass(frozen=True)
class Seated:
    """A loaded engine for one problem: `seat()` gives one layer's callable, `counts()` its launches so far."""

    seat: Callable[[], OpCall]
    counts: Callable[[], Mapping[str, int]]


class Engine:
    """A binder over loaded specs. `enabled=False`: loaded, but every seat is the stock op's."""

    def __init__(self, specs: list[LoadSpec], device: str, cache: Path, enabled: bool) -> None:
        self._enabled, self._stock = enabled, StockBinder()
        self._seated = {s.problem.key: _load(s, device, cache) for s in specs}

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        found = self._seated.get(problem.key)
        return found.seat() if found and self._enabled else self._stock.bind(op, problem, seat)

    def counts(self) -> Counts:
        total: Counter[str] = Counter()
        for seated in self._seated.values():
            total.update(seated.counts())
        return {name: n for name, n in total.items() if n}


def _load(spec: LoadSpec, device: str, cache: Path) -> Seated:
    op = REGISTRY.get(spec.problem.op)
    if spec.engine != ARTEFACT:
        return _stand_in(op, spec)
    from kgen.serve.launcher import Launcher  # only an artefact needs the runtime library
    from kgen.serve.link import link
    from kgen.serve.runtime import find_runtime

    runtime = find_runtime()
    launcher = Launcher(link(Path(spec.object), spec.object_sha256, cache, runtime), spec.function, runtime)
    return Seated(lambda: seat_call(op, spec.problem, launcher, spec.workspaces, device), launcher.counts)


def _stand_in(op: Op, spec: LoadSpec) -> Seated:
    """The stock op, changed as `spec.fault` says, counting its calls under that name."""
    made, calls = STANDINS[spec.fault](op, spec.problem), [0]

    def call(values: Values) -> dict[str, torch.Tensor]:
        calls[0] += 1
        return made(values)

    return Seated(lambda: call, lambda: {spec.fault: calls[0]})


def run(job: dict[str, Any], out: Out) -> dict[str, Any]:
    plan = from_json(Plan, job["plan"])
    dims = model_dims(plan.dims)
    weights = draw(dims, plan.weight_seed, plan.device)
    out.record({"weights": checksum(weights)})
    specs = [from_json(LoadSpec, value) for value in job["loads"]]
    out.at("load")
    engine = Engine(specs, plan.device, Path(job["cache"]), bool(job["enabled"]))
    for batch in plan.batches:
        step = DecodeStep(dims, weights, batch.tokens, plan.arch, engine, REGISTRY)
        ids = token_ids(plan, batch, dims.vocab, plan.device)
        session = Session(step, batch.count)
        with out.candidate(f"{batch.name} eager", plan.device):
            record = _decode(session, batch, ids, engine, out)
        out.record({**record, "mode": "eager", "batch": batch.name})
        if plan.graph:
            with out.candidate(f"{batch.name} graph", plan.device):
                phases = _capture(session, engine)
                record = _decode(session, batch, ids, engine, out)
                rounds = _profiles(session)
            out.record({**record, **phases, "profiled": rounds, "mode": "graph", "batch": batch.name})
        if batch.other and not specs:
            out.at(f"{batch.name} as t{batch.other}")
            other = DecodeStep(dims, weights, batch.other, plan.arch, engine, REGISTRY)
            out.record({"batch": batch.name, "mode": "other", "generated": out.tensor(_recomposed(other, batch, ids))})
    return {}


def _decode(session: Session, batch: Batch, ids: torch.Tensor, engine: Engine, out: Out) -> dict[str, Any]:
    before = engine.counts()
    got = session.teacher_forced(ids)
    record = {"logits": out.tensor(got.logits), "hidden": out.tensor(got.hidden)}
    if batch.generate:
        record["generated"] = out.tensor(session.generate(ids[:PROMPT], batch.generate))
    return {**record, "counts": _moved(before, engine)}


def _recomposed(step: DecodeStep, batch: Batch, ids: torch.Tensor) -> torch.Tensor:
    """Free generation of the same sequences in batches of another bin: int64 [generate, count]."""
    prompt, parts = ids[:PROMPT], []
    for start in range(0, batch.count, step.tokens):
        part = prompt[:, start : start + step.tokens]
        parts.append(Session(step, part.shape[1]).generate(part, batch.generate))
    return torch.cat(parts, dim=1)


def _capture(session: Session, engine: Engine) -> dict[str, Counts]:
    start = engine.counts()
    session.warm(WARMUPS)
    warm = _moved(start, engine)
    start = engine.counts()
    session.capture()
    captured = _moved(start, engine)
    return {"warm": warm, "captured": captured}


def _profiles(session: Session) -> list[Counts]:
    """Rounds until two in a row agree, at most ROUNDS: a profiler may lose records, mostly in its first round."""
    rounds = [_profile(session)]
    while len(rounds) < ROUNDS and rounds[-2:].count(rounds[-1]) < 2:
        rounds.append(_profile(session))
    return rounds


def _profile(session: Session) -> Counts:
    """Kernels that the device ran in REPLAYS replays, by name, as the profiler saw them."""
    seen: Counter[str] = Counter()

    def collect(profiler: Any) -> None:
        seen.update(e.name for e in profiler.events() if e.device_type.name == "CUDA" and not e.is_user_annotation)

    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    cycle = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)  # a cold profiler misses kernels
    with torch.profiler.profile(activities=kinds, schedule=cycle, on_trace_ready=collect) as profiler:
        for replays in (1, REPLAYS):
            session.replay(replays)
            profiler.step()
    return dict(seen)


def _moved(before: Counts, engine: Engine) -> Counts:
    return {name: n - before.get(name, 0) for name, n in engine.counts().items() if n != before.get(name, 0)}
