"""How a run stands at this moment, read from its folder by anybody who may read it, and the lines that say so.

    glance(run, op) -> Glance       raises IntegrityError, StoreError
    lines(glance) -> list[str]      the screen of `kgen watch` and of a live `kgen propose`, in plain text

    Beacon(run)                     what the working process is doing right now; a hint, gone when it ends

The folder is the truth. Only the stage at hand is not in it: the process that holds the run writes it to a file that
nothing else reads, costs no fsync and may be missing. Not covered: how a terminal shows it (progress, watch).
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from kgen.contract.op import Op
from kgen.loop import matrix
from kgen.loop.cost import MACHINES
from kgen.loop.rounds import Round, read_rounds
from kgen.loop.settings import Settings, read_settings
from kgen.loop.spending import Ledger
from kgen.records import GATES, GateResult, Status, one_line
from kgen.store.candidates import CandidateFolder
from kgen.store.durable import TEMP_PREFIX
from kgen.store.runs import Run

BEACON = ".live.json"
PAUSE_S = 0.2  # between two notes of steps
BAR = 20  # characters
WORDS = 150  # of a failure's message


@dataclass(frozen=True)
class Stage:
    """What the process that works on the run last said of itself. `began`: seconds since 1970, of this process."""

    text: str = ""
    done: int = 0
    total: int = 0
    candidate: str = ""  # the last one that something was said of
    began: float = 0.0
    pid: int = 0


@dataclass
class Beacon:
    """Tells `kgen watch` what goes on. Whatever keeps it from doing so never touches the run."""

    run: Run
    stage: Stage = field(default_factory=lambda: Stage(began=time.time(), pid=os.getpid()))
    _last: float = 0.0

    def show(self, stage: Stage, at_once: bool = True) -> None:
        self.stage = Stage(stage.text, stage.done, stage.total, stage.candidate, self.stage.began, self.stage.pid)
        now = time.monotonic()
        if at_once or now - self._last >= PAUSE_S:
            self._last = now
            path = self.run.path / BEACON
            temp = path.with_name(f"{TEMP_PREFIX}live-{self.stage.pid}")  # swept up after a kill
            with suppress(OSError):
                temp.write_text(json.dumps(asdict(self.stage)), encoding="utf-8")
                temp.replace(path)

    def out(self) -> None:
        with suppress(OSError):
            (self.run.path / BEACON).unlink(missing_ok=True)


def stage_of(run: Run) -> Stage:
    """Empty where nobody says anything, or nothing that can be read."""
    try:
        said = json.loads((run.path / BEACON).read_text(encoding="utf-8"))
        whole = int(said["done"]), int(said["total"]), str(said["candidate"]), float(said["began"]), int(said["pid"])
        return Stage(str(said["text"]), *whole)
    except (OSError, ValueError, KeyError, TypeError):
        return Stage()


@dataclass(frozen=True)
class Budget:
    """`most` 0: no limit."""

    name: str
    used: float
    most: float


@dataclass(frozen=True)
class Best:
    """The first in the order of the run. µs are the sum over the quick points; `floor_us` of bytes at the plain-read
    rate; `measured` on a GPU, else a guess from the build."""

    candidate: str
    us: float
    floor_us: float
    measured: bool


@dataclass(frozen=True)
class Glance:
    """`funnel`: gate -> status -> candidates. `failure`: the last one, in one line."""

    run: str
    op: str
    state: str
    outcome: str
    candidates: int
    judged: int
    funnel: Mapping[str, Mapping[str, int]]
    best: Best | None
    budgets: tuple[Budget, ...]
    stage: Stage
    failure: str

    def as_data(self) -> dict[str, Any]:
        return {"schema": "kgen.glance/1", **asdict(self)}


def glance(run: Run, op: Op) -> Glance:
    info, state, folders, rounds = run.info, run.state, run.folders(), read_rounds(run)
    settings = read_settings(info.settings, f"{run.path}/run.json")
    found = {folder: [r for gate in GATES if (r := folder.result(gate)) is not None] for folder in folders}
    funnel: dict[str, dict[str, int]] = {gate: {} for gate in GATES}
    for results in found.values():
        for result in results:
            counts = funnel[result.gate]
            counts[result.status.value] = counts.get(result.status.value, 0) + 1
    stage = stage_of(run) if state == "running" else Stage()
    return Glance(
        run=run.id,
        op=info.op,
        state=state,
        outcome=info.outcome,
        candidates=len(folders),
        judged=sum(not folder.interrupted for folder in folders),
        funnel=funnel,
        best=_best(rounds, op, settings),
        budgets=_budgets(run, settings, rounds, len(folders), stage),
        stage=stage,
        failure=_failure(found),
    )


def _best(rounds: tuple[Round, ...], op: Op, settings: Settings) -> Best | None:
    """Of all rounds; what a clock said goes before a guess."""
    ranked = [entry for r in rounds for entry in r.order if entry.us < float("inf")]
    if not ranked:
        return None
    first = min(ranked, key=lambda entry: (not entry.measured, entry.us))
    problems = matrix.quick(op, settings)
    rate = MACHINES[settings.archs[0]].bytes_per_us
    return Best(first.candidate, first.us, sum(op.cost(p).bytes / rate for p in problems), first.measured)


def _budgets(
    run: Run, settings: Settings, rounds: tuple[Round, ...], candidates: int, stage: Stage
) -> tuple[Budget, ...]:
    ledger = Ledger(run, settings)
    minutes = sum(r.seconds for r in rounds) / 60
    if stage.began:  # the round at hand is not in the sum yet
        ended = [(run.path / "rounds" / f"{r.number:04d}.json").stat().st_mtime for r in rounds if r.judged]
        minutes += max(0.0, time.time() - max([stage.began, *ended])) / 60
    found = [
        Budget("rounds", len(rounds), settings.rounds),
        Budget("candidates", candidates, settings.candidates),
        Budget("minutes", minutes, settings.minutes),
        Budget("USD", ledger.spent_usd, settings.max_usd),
        Budget("GPU s", ledger.gpu_spent, settings.max_gpu_seconds),
    ]
    return tuple(b for b in found if b.most or b.used)


def _failure(found: Mapping[CandidateFolder, list[GateResult]]) -> str:
    """By when it was written."""
    failed = [
        (folder.file(f"{r.gate}.json").stat().st_mtime_ns, folder.number, folder.short_id, r)
        for folder, results in found.items()
        for r in results
        if r.status in (Status.FAIL, Status.ERROR)
    ]
    if not failed:
        return ""
    _, number, short, result = max(failed, key=lambda each: each[:2])
    return one_line(f"#{number} {short}  {result.code}  {result.message.strip()}", WORDS)


def lines(seen: Glance) -> list[str]:
    """From the top: the run, the funnel, the best, the budgets, what goes on, the last failure."""
    over = f": {seen.outcome}" if seen.outcome else ""
    said = [f"{seen.run}  {seen.state}{over}", f"funnel   {seen.candidates} proposed{_funnel(seen)}"]
    if seen.best is not None:
        best, kind = seen.best, "measured" if seen.best.measured else "by static cost"
        floor = f", floor {best.floor_us:.2f} µs ({best.floor_us / best.us:.0%} of it reached)" if best.us else ""
        said.append(f"best     {best.candidate}  {best.us:.2f} µs {kind}{floor}")
    said += [f"{budget.name:<11}{_bar(budget)}" for budget in seen.budgets]
    if seen.stage.text:
        of = f" {seen.stage.done}/{seen.stage.total}" if seen.stage.total else ""
        who = f"  last {seen.stage.candidate}" if seen.stage.candidate else ""
        said.append(one_line(f"now      {seen.stage.text}{of}{who}", WORDS))
    if seen.failure:
        said.append(f"failed   {seen.failure}")
    return said


def _funnel(seen: Glance) -> str:
    parts = []
    for gate, counts in seen.funnel.items():
        if counts:
            passed = counts.get(Status.PASS.value, 0)
            others = [f"{n} {status}" for status, n in sorted(counts.items()) if status != Status.PASS.value]
            parts.append(f"{gate} {passed}{f' ({chr(44).join(others)})' if others else ''}")
    return "".join(f" > {part}" for part in parts)


def _bar(budget: Budget) -> str:
    used = f"{budget.used:.0f}" if budget.used == int(budget.used) else f"{budget.used:.2f}"
    if not budget.most:
        return f"{used} (no limit)"
    full = min(BAR, round(BAR * budget.used / budget.most))
    return f"[{'#' * full}{'.' * (BAR - full)}] {used} of {budget.most:g}"
