"""Runs a job folder's kernels on the GPUs of this host, part by part, and makes the record of it.

    record = run(carried, folder, Request(...), say)

Each part is a set of processes of its own with a time limit, so that one that goes wrong costs only itself: its status,
message and logs are kept, and the next one starts. Parts that decide the verdict: check, endure, lose. Times are there
when the `time` part came through; where it fails with all baselines it is tried again with fewer.
"""

import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kgen.contract.ranks import ranks_of
from kgen.gates.ranks import baselines, host, judge
from kgen.gates.ranks.job import CUDA, Carried, RankedSpec, spec
from kgen.gates.ranks.record import CheckRow, PartRecord, RanksRecord, TimedPoint
from kgen.gates.ranks.transport import HOST, IPC, SYMM
from kgen.records import Environment, Status, from_json, to_json

SECONDS = {"probe": 30.0, "check": 40.0, "endure": 40.0, "time": 55.0, "lose": 25.0}  # that a part may take
DECIDING = ("check", "endure", "lose")
LEAST_SECONDS = 8.0  # left, below which no part is begun
REPLAYS = 512  # of 20 calls each: above 10,000 consecutive calls
REPETITIONS = 60
LOG_BYTES = 12_000  # of a log, from its end
BASELINES = tuple(baselines.REDUCES)
VARIANTS = "variants"  # the numeric check of kernels that are measured beside the candidate
UNREADABLE = (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError, OSError)  # of what a broken part left
Say = Callable[[str], None]
STATUS = {host.DONE: Status.PASS, "error": Status.ERROR}  # how a part ended -> its status; else the candidate failed


@dataclass(frozen=True)
class Request:
    """What is asked for. `transport` "": the first of symm and ipc that works here. `seconds`: for everything."""

    device: str = CUDA
    transport: str = ""
    seed: int = 0
    seconds: float = 110.0
    parts: tuple[str, ...] = ("check", "time", "endure", "lose", VARIANTS)
    families: tuple[str, ...] = ()
    replays: int = REPLAYS
    repetitions: int = REPETITIONS


@dataclass
class _Found:
    parts: list[PartRecord] = field(default_factory=list)
    rows: list[CheckRow] = field(default_factory=list)
    points: list[TimedPoint] = field(default_factory=list)
    environment: tuple[Environment, ...] = ()


class Runs:
    """One job folder at work."""

    def __init__(
        self, specs: Sequence[RankedSpec], cache: Path, asked: Request, say: Say, keep: Callable[[_Found], None]
    ) -> None:
        self.all = list(specs)
        self.specs = [each for each in specs if not each.variant]
        self.cache, self.asked, self.say, self.keep = cache, asked, say, keep
        self.ranks = ranks_of(specs[0].problem)
        self.until = time.monotonic() + asked.seconds
        self.found = _Found()

    def run(self) -> _Found:
        """Every part, as long as time is left."""
        transport = self.asked.transport or self._probed()
        for kind in self.asked.parts if transport else ():
            if kind == "time":
                self._timed(transport)
            elif kind == VARIANTS:
                self._variants(transport)
            else:
                self._part(kind, transport, self.specs)
        return self.found

    def _probed(self) -> str:
        """The first transport that works; "" where none does."""
        if self.asked.device != CUDA:
            return HOST
        return next((name for name in (SYMM, IPC) if self._part("probe", name, self.specs[:1])), "")

    def _told(self, kind: str, transport: str, specs: Sequence[RankedSpec], names: Sequence[str]) -> dict[str, Any]:
        if kind == "endure":
            middle = {0, len(specs) // 2, len(specs) - 1}
            specs = [each for number, each in enumerate(specs) if number in middle]
        asked = self.asked
        return {
            "specs": [to_json(each) for each in specs],
            "cache": str(self.cache),
            "transport": transport,
            "seed": asked.seed,
            "families": list(asked.families),
            "replays": asked.replays,
            "repetitions": asked.repetitions,
            "baselines": list(names),
            "nccl": bool(names),
            "seconds": SECONDS["lose"] - 5,
        }

    def _timed(self, transport: str) -> None:
        """With all baselines and variants; where that does not come through, with those that trouble least."""
        for specs, names in self._tries():
            if self._part("time", transport, specs, names):
                return
            if len({p.problem for p in self.found.points}) == len(self.specs):
                return  # most of it is there: what is missing is not worth the same time again

    def _tries(self) -> Sequence[tuple[Sequence[RankedSpec], Sequence[str]]]:
        if self.asked.device != CUDA:
            return ((self.all, ()),)
        everything = [(self.all, BASELINES)] if len(self.all) > len(self.specs) else []
        return (*everything, (self.specs, BASELINES), (self.specs, (baselines.NCCL,)), (self.specs, ()))

    def _variants(self, transport: str) -> None:
        """The numeric check of the variants, which decides nothing."""
        if specs := [each for each in self.all if each.variant]:
            self._part("check", transport, specs, name=VARIANTS)

    def _part(
        self, kind: str, transport: str, specs: Sequence[RankedSpec], names: Sequence[str] = (), name: str = ""
    ) -> bool:
        """One part; its rows and points go to what was found. True when it ended well."""
        left, name = self.until - time.monotonic(), name or kind
        if left < LEAST_SECONDS:
            self.found.parts.append(PartRecord(name, transport, Status.SKIP, "no_time", f"{left:.0f} s left", 0.0))
            return False
        limit = min(left, SECONDS[kind])
        self.say(f"{name} over {transport}: up to {limit:.0f} s ...")
        kill = self.ranks - 1 if kind == "lose" else -1
        job, started = self._told(kind, transport, specs, names), time.monotonic()
        with host.running(kind, job, ranks=self.ranks, device=self.asked.device, deadline=limit, kill=kill) as part:
            try:
                rows = self._judged(kind, part, specs)
                record = _record(kind, transport, part, rows)
            except UNREADABLE:
                rows, text = [], traceback.format_exc()
                raw = {f"rank {rank}": o.records for rank, o in enumerate(part.outcomes)}
                logs = (text, *(o.log[-LOG_BYTES:] for o in part.outcomes))
                said = text.strip().splitlines()[-1]
                record = PartRecord(kind, transport, Status.ERROR, "unjudged", said, part.seconds, raw, logs)
        record = replace(record, name=name, seconds=time.monotonic() - started)
        self.found.parts.append(record)
        self.found.rows += rows
        self.say(f"{name} over {transport}: {record.status} {record.code} {record.message[:300]}")
        self.keep(self.found)
        return record.status is Status.PASS

    def _judged(self, kind: str, part: host.Part, specs: Sequence[RankedSpec]) -> list[CheckRow]:
        rows: list[CheckRow] = []
        for each in specs:
            if kind == "check":
                rows += judge.sequences(each, part.outcomes) + judge.mailboxes(each, part.outcomes)
            elif kind == "endure":
                rows += judge.endured(each, part.outcomes) + judge.mailboxes(each, part.outcomes)
            elif kind == "time":
                self.found.points += judge.points(each, part.outcomes, self.asked.seed)
                rows += judge.timed_outputs(each, part.outcomes)
        if kind == "time" and all("environment" in o.result for o in part.outcomes):
            self.found.environment = tuple(from_json(Environment, o.result["environment"]) for o in part.outcomes)
        return rows


def _record(kind: str, transport: str, part: host.Part, rows: Sequence[CheckRow]) -> PartRecord:
    """How a part ended, with its ranks' logs where they matter."""
    logs = () if part.status == host.DONE else tuple(o.log[-LOG_BYTES:] for o in part.outcomes)
    facts: dict[str, Any] = {f"rank {r}": _facts(o.result) for r, o in enumerate(part.outcomes)}
    said = [record for o in part.outcomes for record in o.records if record.get("complaints") or "returned" in record]
    facts |= {"said": said} if said else {}
    if kind == "lose":
        status, code, message = _loss(part)
        return PartRecord(kind, transport, status, code, message, part.seconds, facts, logs)
    wrong = [row for row in rows if row.complaint and row.code != "baseline"]
    if wrong:
        message = f"{wrong[0].problem} {wrong[0].what}: {wrong[0].complaint}; {len(wrong)} complaints in all"
        return PartRecord(kind, transport, Status.FAIL, wrong[0].code, message, part.seconds, facts, logs)
    status = STATUS.get(part.status, Status.FAIL)
    if kind in ("check", "endure") and status is Status.PASS and not rows:
        return PartRecord(kind, transport, Status.ERROR, "nothing", "nothing was judged", part.seconds, facts, logs)
    return PartRecord(kind, transport, status, part.status, part.message, part.seconds, facts, logs)


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k in ("facts", "aligned", "fault", "error")}


def _loss(part: host.Part) -> tuple[Status, str, str]:
    """The loss of a rank must end every other rank with a word of it, soon, by the kernel's own bound."""
    others = [o for o in part.outcomes if o.status != host.LOST]
    if not part.lost or len(others) != len(part.outcomes) - 1:
        return Status.ERROR, "not_lost", f"no single rank was lost: {part.message}"
    text = f"{part.lost}; the others ended {part.after:.1f} s later"
    if all(o.status == "fault" for o in others):
        return Status.PASS, "named", text
    return Status.FAIL, "unbounded_wait", f"{text}, killed by the host: {part.message}"


def linked() -> dict[str, str]:
    """What nvidia-smi says of the GPUs and how they are linked; empty without it."""
    smi = shutil.which("nvidia-smi")
    found: dict[str, str] = {}
    for name, words in {"gpus": ["-L"], "topology": ["topo", "-m"]}.items() if smi else ():
        try:
            done = subprocess.run([str(smi), *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            found[name] = str(error)
        else:
            found[name] = (done.stdout + done.stderr)[:4000]
    return found


def run(
    carried: Sequence[Carried], folder: Path, asked: Request, say: Say, keep: Callable[[RanksRecord], None]
) -> RanksRecord:
    """`folder` holds objects/SHA256.o for each; `keep` gets the record as it is after every part.

    Raises ValueError for kernels that do not belong together.
    """
    specs = [spec(each, folder / "objects" / f"{each.record.object_sha256}.o") for each in carried]
    return run_specs(specs, folder / "cache", asked, say, keep)


def run_specs(
    specs: Sequence[RankedSpec], cache: Path, asked: Request, say: Say, keep: Callable[[RanksRecord], None]
) -> RanksRecord:
    """The record of these kernels of one candidate, in order, and of its variants. Raises ValueError as `run` does."""
    main = [each for each in specs if not each.variant]
    if len({(s.candidate, s.problem.op, ranks_of(s.problem)) for s in main}) != 1:
        raise ValueError("kernels of one candidate, one op and one number of ranks belong in a job")
    started = time.monotonic()
    machine = linked() if asked.device == CUDA else {}

    def made(found: _Found) -> RanksRecord:
        verdict, message = _verdict(found, asked)
        return RanksRecord(
            op=main[0].problem.op,
            op_contract=main[0].op.contract_sha256(),
            candidate=main[0].candidate,
            ranks=ranks_of(main[0].problem),
            device=asked.device,
            seed=asked.seed,
            seconds=time.monotonic() - started,
            verdict=verdict,
            message=message,
            objects={each.label: each.object_sha256 for each in specs},
            parts=tuple(found.parts),
            rows=tuple(judge.distinct(found.rows)),
            points=tuple(found.points),
            environment=found.environment,
            host=machine,
        )

    return made(Runs(specs, cache, asked, say, lambda found: keep(made(found))).run())


def _verdict(found: _Found, asked: Request) -> tuple[Status, str]:
    failed = [p for p in found.parts if p.status is Status.FAIL and p.name in DECIDING]
    if failed:
        return Status.FAIL, f"{failed[0].name}: {failed[0].code}: {failed[0].message}"[:1000]
    passed = {p.name for p in found.parts if p.status is Status.PASS}
    wrong = [r for r in found.rows if r.complaint and r.code != "baseline" and "#" not in r.problem]
    if wrong:
        return Status.FAIL, f"{wrong[0].what}: {wrong[0].code}: {wrong[0].complaint}"[:1000]
    missing = [name for name in DECIDING if name not in passed]
    if missing:
        return Status.ERROR, f"not proven: {', '.join(missing)} did not come through"
    if asked.device != CUDA:
        return Status.PASS, "on the CPU, by the stand-in: the checks, not a kernel"
    return Status.PASS, "right on all ranks, call after call, and a lost rank is named"
