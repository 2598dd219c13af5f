"""What a run has cost, added up from its folder: by candidate, by gate, by promoted kernel.

    account(run) -> Account          account.by_gate(), account.by_candidate(), account.total, account.promoted(set)

Tokens and money are those of the kept answers, put to the candidate that their prompt led to; what led to none, failed
requests among it, stands in a line of its own. Wall seconds of a gate are those of its results, CPU seconds are shared
out in their proportion (`cpu` says how they are measured), GPU seconds are those of leases. Runs of an older kgen have
no CPU and GPU seconds. Not covered: limits (`spending`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import ClassVar

from kgen.loop.rounds import read_failed, read_rounds
from kgen.loop.spending import PROPOSE, QUICK, read_uses, shares
from kgen.proposers.base import Usage
from kgen.proposers.transcript import Transcript
from kgen.records import GATES, GateResult
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import read_record
from kgen.store.kernelset import KernelSet
from kgen.store.runs import Run


@dataclass(frozen=True)
class Line:
    """What a gate (or the proposing) of a candidate took; `candidate` is its folder name, "" for what is nobody's."""

    SCHEMA: ClassVar[str] = "kgen.ledger-line/1"
    candidate: str
    gate: str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    usage: Usage = field(default_factory=Usage)

    def __add__(self, other: "Line") -> "Line":
        both = (self.wall_s + other.wall_s, self.cpu_s + other.cpu_s, self.gpu_s + other.gpu_s)
        return Line(self.candidate, self.gate, *both, self.usage + other.usage)


@dataclass(frozen=True)
class Account:
    """`wall_s` is the run's own time: candidates are worked on side by side, and their seconds add up to more."""

    SCHEMA: ClassVar[str] = "kgen.ledger/1"
    run: str
    op: str
    lines: tuple[Line, ...]
    wall_s: float
    measured: bool  # CPU seconds were measured

    def by_gate(self) -> list[Line]:
        """In the order of the gates, the proposing first."""
        found = _merged(self.lines, lambda line: replace(line, candidate=""))
        return sorted(found, key=lambda line: (PROPOSE, *GATES).index(line.gate))

    def by_candidate(self) -> list[Line]:
        return _merged(self.lines, lambda line: replace(line, gate=""))

    @property
    def total(self) -> Line:
        total = reduce(Line.__add__, (replace(line, candidate="", gate="") for line in self.lines), Line("", ""))
        return replace(total, wall_s=self.wall_s)

    def promoted(self, kernels: Path) -> list[Line]:
        """For each kernel that a set has from this run: what the run cost, shared equally; all of it led to them."""
        found = KernelSet(kernels)
        promotions = found.manifest().promotions if found.exists() else ()
        ids = list(dict.fromkeys(p.candidate for p in promotions if p.run == self.run))
        return [_part(replace(self.total, candidate=c), len(ids)) for c in ids]


def account(run: Run) -> Account:
    """Raises IntegrityError for damaged files."""
    rounds, folders = read_rounds(run), run.folders()
    lines = [*_proposing(run, folders)]
    asking = -sum(line.wall_s for line in lines)  # what is more than the answers took is nobody's
    measured: dict[tuple[str, str], float] = {}
    for cost in (c for entry in rounds for c in entry.costs):
        parts = shares(cost)
        for name, part in parts.items():
            measured[name, cost.gate] = measured.get((name, cost.gate), 0.0) + part.cpu_s
        asking += cost.wall_s if cost.gate == PROPOSE else 0.0
        if not parts:
            lines.append(Line("", cost.gate, cpu_s=cost.cpu_s))
    lines.append(Line("", PROPOSE, max(0.0, asking)))
    for folder in folders:
        lines += _judging(folder, measured)
    own = [line for line in lines if line != Line(line.candidate, line.gate)]
    seconds = sum(r.seconds for r in rounds)
    return Account(run.id, run.info.op, tuple(own), seconds, any(r.costs for r in rounds))


def _judging(folder: CandidateFolder, cpu: Mapping[tuple[str, str], float]) -> Iterable[Line]:
    """A line for each gate that did something for this candidate."""
    name, uses = folder.path.name, read_uses(folder)
    quick = folder.file(QUICK)
    for gate in GATES:
        results = [folder.result(gate), read_record(GateResult, quick) if gate == GATES[0] and quick.exists() else None]
        wall = sum(r.seconds for r in results if r is not None)
        gpu = sum(u.seconds for u in uses if u.gate == gate)
        yield Line(name, gate, wall, cpu.get((name, gate), 0.0), gpu)


def _proposing(run: Run, folders: Iterable[CandidateFolder]) -> Iterable[Line]:
    """Usage by candidate; what of the rounds' usage is in no kept answer is nobody's."""
    names = {f.short_id: f.path.name for f in folders}
    transcript = Transcript(run.path)
    kept = [entry[0] for number in transcript.numbers() if (entry := transcript.read(number))]
    led = {e.prompt_sha256: names.get(e.candidate[:12], "") for e in kept if e.candidate}
    for record in kept:
        usage = replace(record.usage, seconds=0.0)
        yield Line(led.get(record.prompt_sha256, ""), PROPOSE, record.usage.seconds, usage=usage)
    told = [Usage(**r.usage) for r in read_rounds(run)] + [Usage(**f.usage) for f in read_failed(run)]
    rest = _without(reduce(Usage.__add__, told, Usage()), reduce(Usage.__add__, (e.usage for e in kept), Usage()))
    yield Line("", PROPOSE, usage=rest)


def _without(all_: Usage, kept: Usage) -> Usage:
    """What the rounds know of beyond the kept answers: failed requests."""
    counts = ("prompt_tokens", "completion_tokens", "attempts", "cached_tokens", "reasoning_tokens", "lost")
    left = {name: max(0, getattr(all_, name) - getattr(kept, name)) for name in counts}
    cost = None if all_.cost_usd is None else max(0.0, all_.cost_usd - (kept.cost_usd or 0.0))
    return Usage(**left, cost_usd=cost or None, estimated=any(left.values()) and all_.estimated)


def _merged(lines: Iterable[Line], alike: Callable[[Line], Line]) -> list[Line]:
    merged: dict[tuple[str, str], Line] = {}
    for line in map(alike, lines):
        key = (line.candidate, line.gate)
        merged[key] = merged[key] + line if key in merged else line
    return list(merged.values())


def _part(line: Line, of: int) -> Line:
    usage = line.usage
    cost = None if usage.cost_usd is None else usage.cost_usd / of
    counts = {n: getattr(usage, n) // of for n in ("prompt_tokens", "completion_tokens", "attempts")}
    more = {n: getattr(usage, n) // of for n in ("cached_tokens", "reasoning_tokens", "lost")}
    shared = Usage(**counts, **more, cost_usd=cost, estimated=usage.estimated)
    return Line(line.candidate, line.gate, line.wall_s / of, line.cpu_s / of, line.gpu_s / of, shared)
