"""What `kgen verify` has measured again so far, and what it says of the evidence that a set holds.

One file for a set's state, a GPU's arch and machine, and a kind of run; errors are not kept, they are tried again.
Whether a point still holds is a matter of intervals: it does where it is a win or a tie again, it does not where even
the lower bound is above a tie, and what lies between is neither shown nor refuted.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import environment
from kgen.gates.kit_results import NEUTRAL
from kgen.gates.kit_units import Done
from kgen.promotion import Finding, Outcome
from kgen.promotion.verify import name
from kgen.records import Manifest, PerfPoint, Promotion, Status, canonical_json, sha256_bytes
from kgen.records.envelope import HEADLINE, TIE_LIMIT, label
from kgen.store.documents import json_bytes, read_record
from kgen.store.durable import DURABLE
from kgen.store.errors import IntegrityError
from kgen.store.runs import utc_now

KEPT_FOR = timedelta(days=1)  # what is older was measured for another question
SKEW = timedelta(minutes=5)  # of a clock that was set back
OUTCOMES = {Status.PASS: Outcome.OK, Status.FAIL: Outcome.BAD, Status.ERROR: Outcome.SKIP, Status.SKIP: Outcome.SKIP}


@dataclass(frozen=True)
class Part:
    """A piece that came to its end, at `finished` (UTC); `digest`: of the objects that were judged."""

    name: str
    digest: str
    status: Status
    code: str
    message: str
    seconds: float
    finished: str
    points: tuple[PerfPoint, ...] = ()

    @property
    def fresh(self) -> bool:
        """Whether it is of a run that is still going on, and not of one that was given up."""
        try:
            age = datetime.now(UTC) - datetime.fromisoformat(self.finished)
        except (ValueError, TypeError):
            return False
        return timedelta(0) <= age + SKEW and age <= KEPT_FOR

    @property
    def outcome(self) -> Outcome:
        return Outcome.OK if self.code in NEUTRAL else OUTCOMES[self.status]


@dataclass(frozen=True)
class Parts:
    """`machine`: GPU, driver, torch and the version of the rules; parts of another one are not taken up."""

    SCHEMA: ClassVar[str] = "kgen.verified-parts/2"
    machine: Mapping[str, str]
    parts: tuple[Part, ...] = ()


@dataclass
class Kept:
    """The parts of one run, in a file that is rewritten after each."""

    path: Path
    parts: Parts
    errors: tuple[Part, ...] = ()

    def of(self, piece: str, judged: str) -> Part | None:
        return next((p for p in (*self.parts.parts, *self.errors) if (p.name, p.digest) == (piece, judged)), None)

    def add(self, piece: str, judged: str, done: Done) -> None:
        result = done.result
        said = result.status, result.code, result.message
        part = Part(piece, judged, *said, round(result.seconds, 1), utc_now(), done.points)
        if result.status is Status.ERROR:
            self.errors = (*self.errors, part)
            return
        self.parts = replace(self.parts, parts=(*self.parts.parts, part))
        DURABLE.write(self.path, json_bytes(self.parts))

    def forget(self) -> None:
        """Unless something ended in an error, which another call would try again."""
        if not self.errors:
            self.path.unlink(missing_ok=True)


def digest(objects: Mapping[str, str]) -> str:
    return sha256_bytes(canonical_json(dict(objects)))[:16]


def open_parts(cache: Path, manifest: Manifest, arch: str, full: bool) -> Kept:
    """What is kept for this set as it is, on this machine, of the last day; an unreadable file is begun anew."""
    here = environment()
    machine = {"gpu": here.gpu, "driver": here.driver, "cuda": here.cuda, "torch": here.torch}
    machine["rules"] = str(GATE_CONTRACT)
    path = cache / "verify" / f"{manifest.checksum[:16]}-{arch}-{'full' if full else 'all'}.json"
    try:
        found = read_record(Parts, path) if path.exists() else Parts(machine)
    except IntegrityError:
        found = Parts(machine)
    if found.machine != machine:
        found = Parts(machine)
    return Kept(path, replace(found, parts=tuple(p for p in found.parts if p.fresh)))


def findings(promotion: Promotion, served: AbstractSet[str], points: Sequence[PerfPoint]) -> Iterator[Finding]:
    """What new times say of the promoted labels: a line for all points that hold, and one for each that does not."""
    held: list[str] = []
    for key in sorted(served):
        mine = [p for p in points if p.problem == key and p.column == HEADLINE]
        if not mine:
            continue
        worst = max(mine, key=lambda p: p.ratio_high if p.ratio_high == p.ratio_high else float("inf"))
        now, was = label(worst.ratio_high), promotion.labels.get(key, "nothing")
        if now != "left":
            held.append(now)
            continue
        times = f"{worst.ratio:.3f} ({worst.ratio_low:.3f} to {worst.ratio_high:.3f}) of {worst.best_baseline}"
        gone = not worst.ratio_low <= TIE_LIMIT
        text = "it does not hold any more" if gone else "neither shown nor refuted"
        said = f"promoted as {was}, now {times} at {worst.tokens} tokens{_in(worst)}: {text}"
        yield Finding(name(promotion), key, Outcome.BAD if gone else Outcome.SKIP, said)
    if held:
        text = f"{len(held)} timed points hold: {held.count('win')} win, {held.count('tie')} tie"
        yield Finding(name(promotion), "labels", Outcome.OK, text)


def _in(point: PerfPoint) -> str:
    return f" in {point.scenario}" if point.scenario else ""
