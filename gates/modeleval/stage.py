"""What an exercise runs on, in a runner process: one decode model with its weights, and batches that keep count.

A batch notes what sits in its seats, how many steps it took, and what was launched in each phase: eager steps, or
warm-up, capture and replays. Not covered: what the exercises do with it (perform, perform_tasks).
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kgen.contract.op import Registry
from kgen.gates.modeleval.census import config_of
from kgen.gates.modeleval.exercise import GRAPH, Exercise, Seeds
from kgen.gates.modeleval.given import GivenExperts
from kgen.gates.modeleval.heads import KeptHeads
from kgen.gates.modeleval.loaded import Launches, Seating, moved
from kgen.model.bind import ReferenceBinder
from kgen.model.decoder.config import config
from kgen.model.decoder.draw import draw
from kgen.model.decoder.engine import DecoderEngine
from kgen.model.decoder.session import Session
from kgen.model.decoder.step import Output
from kgen.model.decoder.weights import Weights, load

WARMUPS = 2
REPLAYS = 1  # graph replays under the profiler, a round
ROUNDS = 4  # at most: the profiler may lose records; one round must be exact, none may show more


@dataclass
class Batch:
    """Prepared sequences of one engine (kgen.model.decoder.engine.Sequences) that count their steps."""

    session: Session
    engine: DecoderEngine
    note: dict[str, Any]
    start: Launches
    heads: KeptHeads | None = None  # where the exercise keeps them
    steps: int = 0

    @property
    def count(self) -> int:
        return self.session.count

    @property
    def device(self) -> torch.device:
        return self.session.step.weights.device

    @property
    def vocab(self) -> int:
        return int(self.session.step.weights["lm_head"].shape[0])

    def reset(self) -> None:
        self.session.reset()

    def decode(self, ids: torch.Tensor) -> Output:
        self.steps += 1
        return self.session.decode(ids)

    def verify(self, ids: torch.Tensor) -> Output:
        self.steps += 1
        return self.session.verify(ids)

    def accept(self, counts: torch.Tensor) -> None:
        self.session.accept(counts)

    def finish(self) -> None:
        """No step follows: what is launched from here on belongs to another batch of the same engine."""
        if "counts" not in self.note:
            self.note |= {"steps": self.steps, "counts": moved(self.start, self.engine.launches())}

    def done(self, profiled: bool = False) -> dict[str, Any]:
        """The attestation record: seats, steps, launches by phase, and what a profiler sees in replays."""
        self.finish()
        if profiled and self.note["mode"] == GRAPH:
            self.note["profiled"] = _profiles(self.session)
        return self.note


@dataclass
class Stage:
    """Decode models of one process. `exact`: in float64 without roundings, whatever is loaded."""

    registry: Registry
    seating: Seating
    device: str
    arch: str
    seeds: Seeds
    checkpoint: Path
    side: str
    exact: bool = False
    _weights: dict[str, Weights] = field(default_factory=dict)

    def weights(self, exercise: Exercise) -> Weights:
        """Of an exercise's model; drawn or read once. Raises CheckpointError for a file that does not fit."""
        name = f"{exercise.way.config}/{exercise.way.depth}"
        if name not in self._weights:
            self._weights.clear()  # one model's weights at a time
            whole = config(exercise.way.config)
            if whole.trained:
                self._weights[name] = load(self.checkpoint, whole, self.registry, self.device)
            else:
                self._weights[name] = draw(config_of(exercise.way), self.registry, self.seeds.weights, self.device)
        return self._weights[name]

    def rows_for(self, tokens: int) -> int:
        """The rows of a step that holds so many tokens: a token bin."""
        return next(iter(self.registry.ops.values())).bin_for(tokens)

    def prepare(
        self, exercise: Exercise, mode: str, context: int, *, requests: int = 0, count: int = 0, q: int = 0
    ) -> Batch:
        """A batch of the exercise's requests, count and q unless others are named."""
        requests, q = requests or exercise.requests, q or exercise.q
        count = count or min(exercise.count, requests)
        self.seating.forget()
        if self.device != "cpu":
            torch.cuda.empty_cache()  # graphs of earlier batches keep theirs, and other processes need it
        session, engine, heads = self._session(exercise, requests, count, q, context)
        note: dict[str, Any] = {"mode": mode, "requests": requests, "q": q}
        note |= {"promoted": dict(self.seating.promoted), "stock": dict(self.seating.stock)}
        if mode == GRAPH:
            before = engine.launches()
            session.warm(WARMUPS)
            warm = engine.launches()
            session.capture()
            note |= {"warm": moved(before, warm), "captured": moved(warm, engine.launches())}
        return Batch(session, engine, note, engine.launches(), heads)

    def _session(
        self, exercise: Exercise, requests: int, count: int, q: int, context: int
    ) -> tuple[Session, DecoderEngine, KeptHeads | None]:
        weights, seating = self.weights(exercise), self.seating
        if self.exact:
            weights = Weights({**weights.tensors, "embed": weights["embed"].double()})
            seating = Seating(others=ReferenceBinder())
        given = GivenExperts(seating, weights, self.seeds.weights, self.device) if exercise.given else None
        heads = KeptHeads(given or seating) if exercise.heads else None
        binder = heads or given or seating
        engine = DecoderEngine(config_of(exercise.way), weights, self.registry, self.arch, binder, seating.launches)
        room = context + q  # a profiler's replays behind the last step do not advance
        session = engine.prepare(requests, count, q, room, graph=False)
        if given is not None:
            given.follow(session)
        return session, engine, heads


def _profiles(session: Session) -> list[dict[str, int]]:
    """Rounds until two in a row agree, at most ROUNDS: a profiler may lose records, mostly in its first round."""
    rounds = [_profile(session)]
    while len(rounds) < ROUNDS and rounds[-2:].count(rounds[-1]) < 2:
        rounds.append(_profile(session))
    return rounds


def _profile(session: Session) -> dict[str, int]:
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
