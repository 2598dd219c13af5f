"""`python -m kgen.model.nano.train --out weights.safetensors --log train.jsonl --minutes 18 --seed 1 --device cuda`

Trains within a wall-clock budget on one device, evaluates on held-out items on the way and writes weights and log. The
weights are written at every evaluation, at the end of the budget and on SIGTERM. Where a single command may not run
that long, `--stop-after M --state FILE` ends it after M minutes; the same command then goes on from there.
Not here: generation with the trained weights.
"""

import argparse
import hashlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from kgen import __version__
from kgen.model.nano.batches import Batch, feed, to_device
from kgen.model.nano.captured import CapturedSteps
from kgen.model.nano.export import write
from kgen.model.nano.learning import accuracy, finite, optimiser, quantise_at, rate_at, train_step
from kgen.model.nano.packing import EXAMS, Diet, Exam, Job, Packed, pack
from kgen.model.nano.pointwise import Pointwise
from kgen.model.nano.shape import SHAPES
from kgen.model.nano.tasks import TASKS
from kgen.model.nano.trainable import NanoModel

RESERVE_S = 25.0  # of the budget, for the last evaluation and the file
EXAM_SEED = 1_000_003  # the items that measure training are not the gate's
FIRST_LOG_S, LOG_S = 1.0, 5.0


@dataclass(frozen=True)
class Run:
    """What the command line says. A budget of `steps` replaces `minutes` where it is given."""

    out: Path
    log: Path
    state: Path | None
    minutes: float
    steps: int
    stop_after: float
    seed: int
    device: str
    shape: str
    tokens: int
    longest: int
    tasks: str
    rate: float
    workers: int
    evaluate_minutes: float
    exam_items: int
    fused: bool
    graphs: bool

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"no shape {self.shape!r}: choose one of {', '.join(SHAPES)}")
        if self.minutes <= 0 or self.evaluate_minutes <= 0 or self.stop_after < 0:
            raise ValueError("--minutes and --evaluate-minutes must be positive, --stop-after 0 (never) or more")
        if self.steps < 0 or self.workers < 0 or self.exam_items < 1:
            raise ValueError("--steps and --workers must be 0 or more, --exam-items 1 or more")
        if self.stop_after and self.state is None:
            raise ValueError("--stop-after needs --state FILE, from which the next command goes on")
        if not 0 < self.rate < 1:
            raise ValueError(f"--rate {self.rate} must lie between 0 and 1")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device here")
        self.diet()  # refuses sizes that fit no row

    def diet(self) -> Diet:
        return Diet(self.seed, self.tokens, self.longest, tuple(self.tasks.split(",")))


class Log:
    """JSON lines, each flushed; a short form on stderr."""

    def __init__(self, path: Path, again: bool) -> None:
        self._file = path.open("a" if again else "w", encoding="utf-8")

    def __call__(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()
        sys.stderr.write(f"{kind} " + " ".join(f"{k}={_short(v)}" for k, v in values.items() if k != "run") + "\n")

    def close(self) -> None:
        self._file.close()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Training:
    """A model on its way: masters, optimiser, and what has been done so far (also in an earlier command)."""

    def __init__(self, run: Run, log: Log, launched: float) -> None:
        self.run, self.log = run, log
        cuda = run.device.startswith("cuda")
        torch.set_float32_matmul_precision("high" if cuda else "highest")
        compute = torch.bfloat16 if cuda else torch.float32
        self.model = NanoModel(SHAPES[run.shape], compute=compute, seed=run.seed).to(run.device)
        self.optimiser = optimiser(self.model, run.rate)
        self.captured = CapturedSteps(self.model, self.optimiser, run.rate) if run.graphs and cuda else None
        self.step = self.tokens = 0
        self.earlier = 0.0  # seconds that earlier commands trained
        self.launched, self.began = launched, time.monotonic()
        self.exams: dict[Exam, list[Batch]] = {}
        self.stop = False

    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.began

    def progress(self) -> float:
        """Share of the budget that is used, 0..1."""
        if self.run.steps:
            return min(1.0, self.step / self.run.steps)
        whole = self.run.minutes * 60
        return min(1.0, self.seconds() / (whole - min(RESERVE_S, 0.2 * whole)))

    def paused(self) -> bool:
        """Whether this command is to end before the budget does."""
        limit = self.run.stop_after * 60
        return self.stop or (limit > 0 and time.monotonic() - self.launched >= limit)

    def fuse(self) -> str:
        """Compile the element-wise parts by running them once; what became of it. Training goes on without them."""
        self.model.fn = Pointwise.compiled()
        try:
            for length in (64, 128):  # the second one is compiled for any number of rows
                ids = torch.ones(4, length, dtype=torch.int64, device=self.run.device)
                with torch.no_grad():  # evaluation has graphs of its own
                    self.model(ids, quantise=False)
                rows, _ = self.model(ids, quantise=False)
                self.model.head(rows).sum().backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError) as fault:
            self.model.fn = Pointwise()
            return f"no: {type(fault).__name__}: {str(fault).splitlines()[0][:200]}"
        finally:
            self.model.zero_grad()
        return "yes"

    def evaluate(self) -> None:
        """Accuracy on every exam, as the weights would be stored, and the file with them."""
        began, quantise = time.monotonic(), quantise_at(self.progress())
        found = {exam.name: accuracy(self.model, batches, quantise) for exam, batches in self.exams.items()}
        notes = {"seed": str(self.run.seed), "step": str(self.step), "tokens": str(self.tokens)}
        write(self.run.out, self.model, notes)
        if self.run.state is not None:
            self.save(self.run.state)
        took = time.monotonic() - began
        self.log("eval", step=self.step, seconds=self.seconds(), quantised=quantise, accuracy=found, took=took)

    def save(self, path: Path) -> None:
        content = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds(),
            "run": {"shape": self.run.shape, "seed": self.run.seed},
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save(content, beside)
        beside.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a state. ValueError if it belongs to another shape or seed."""
        content = torch.load(path, map_location=self.run.device, weights_only=True)
        if content["run"] != {"shape": self.run.shape, "seed": self.run.seed}:
            raise ValueError(f"{path} belongs to another run {content['run']}: name another --state")
        self.model.load_state_dict(content["model"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.step, self.tokens, self.earlier = content["step"], content["tokens"], content["seconds"]

    def update(self, batch: Batch, progress: float) -> torch.Tensor:
        """One step; its loss, still on the device."""
        if self.captured is not None:
            return self.captured(batch, progress, quantise_at(progress))
        return train_step(self.model, self.optimiser, batch, progress, self.run.rate)

    def learn(self, following: Callable[[], Packed]) -> None:
        """Steps until the budget or this command ends."""
        run, losses, marked = self.run, [], (time.monotonic(), self.tokens)
        evaluated, every = time.monotonic(), FIRST_LOG_S
        while (progress := self.progress()) < 1 and not self.paused():
            packed = following()
            losses.append(self.update(to_device(packed, run.device), progress))
            self.step += 1
            self.tokens += packed.rows * packed.length
            now = time.monotonic()
            if now - marked[0] >= every:
                loss, speed = finite(losses), (self.tokens - marked[1]) / (time.monotonic() - marked[0])
                values = {"loss": loss, "rate": rate_at(progress, run.rate), "tokens": self.tokens}
                self.log("train", step=self.step, seconds=self.seconds(), progress=progress, speed=speed, **values)
                losses, marked, every = [], (time.monotonic(), self.tokens), LOG_S
            if now - evaluated >= run.evaluate_minutes * 60:
                self.evaluate()
                evaluated = time.monotonic()
                marked = (evaluated, self.tokens)


def train(run: Run) -> None:
    """The whole command; raises ValueError for what cannot be done and RuntimeError when training breaks."""
    again = run.state is not None and run.state.exists()
    log, launched = Log(run.log, again), time.monotonic()
    handler = signal.getsignal(signal.SIGTERM)
    issued, diet = 0, run.diet()
    state: Training | None = None

    def next_job() -> Job:
        nonlocal issued
        issued += 1
        progress = state.progress() if state is not None else 0.0
        return diet.job(issued - 1, progress)

    try:
        with feed(run.workers, next_job) as following:
            wanted = [e for e in EXAMS if e.length <= run.longest and e.task in diet.tasks]
            exams = [replace(e, count=min(e.count, run.exam_items)) for e in wanted]
            drawn = {exam: [pack(job) for job in exam.jobs(run.tokens, EXAM_SEED)] for exam in exams}
            state = training = Training(run, log, launched)
            if run.state is not None and again:
                training.resume(run.state)
                issued = training.step
            training.exams = {exam: [to_device(p, run.device) for p in packs] for exam, packs in drawn.items()}
            _start(training)
            training.learn(following)
            training.evaluate()
        digest = hashlib.sha256(run.out.read_bytes()).hexdigest()
        whole = training.progress() >= 1
        log("end" if whole else "pause", step=training.step, seconds=training.seconds(), sha256=digest)
    finally:
        signal.signal(signal.SIGTERM, handler)
        log.close()


def _start(training: Training) -> None:
    """The log's first line, the clock, and a graceful end on SIGTERM."""

    def ask(signum: int, frame: FrameType | None) -> None:
        training.stop = True

    signal.signal(signal.SIGTERM, ask)
    run = {key: value.name if isinstance(value, Path) else value for key, value in asdict(training.run).items()}
    device = torch.cuda.get_device_name() if training.run.device.startswith("cuda") else platform.processor()
    versions = {"kgen": __version__, "torch": torch.__version__, "python": platform.python_version()}
    size = sum(p.numel() for p in training.model.parameters())
    fused = training.fuse() if training.run.fused else "not asked for"
    values = {"versions": versions, "parameters": size, "fused": fused, "from_step": training.step}
    training.log("start", run=run, device=device, **values)
    training.began = time.monotonic()


def parse(arguments: Sequence[str]) -> Run:
    """The run that the command line describes. ValueError says what is odd."""
    parser = argparse.ArgumentParser(prog="python -m kgen.model.nano.train", description="Train the nano model.")
    parser.add_argument("--out", type=Path, required=True, help="weights, safetensors")
    parser.add_argument("--log", type=Path, required=True, help="JSON lines")
    parser.add_argument("--state", type=Path, help="training state to write, and to go on from if it exists")
    parser.add_argument("--minutes", type=float, default=18.0, help="wall-clock budget of the whole training")
    parser.add_argument("--steps", type=int, default=0, help="budget in steps instead")
    parser.add_argument("--stop-after", type=float, default=0.0, help="minutes after which this command ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="nano", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens a step")
    parser.add_argument("--longest", type=int, default=16384, help="longest row in training and exams")
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks to train, by commas")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--workers", type=int, default=12, help="processes that draw batches")
    parser.add_argument("--evaluate-minutes", type=float, default=3.0)
    parser.add_argument("--exam-items", type=int, default=256, help="most items an exam has")
    parser.add_argument("--fused", action="store_true", help="fuse the element-wise parts with torch.compile")
    parser.add_argument("--graphs", action="store_true", help="run the steps as CUDA graphs")
    return Run(**vars(parser.parse_args(arguments)))


def main() -> None:
    """Run the command line; a refusal is one line and status 2."""
    try:
        train(parse(sys.argv[1:]))
    except (ValueError, RuntimeError, OSError) as fault:
        sys.stderr.write(f"train: {fault}\n")
        raise SystemExit(2 if isinstance(fault, ValueError) else 1) from None


if __name__ == "__main__":
    main()
