"""What the phases of a candidate's kernels move, as one finding a problem: static bytes, and their share of the floor.

The bytes are counted in the PTX (gates/audit/phases.py): outside of loops at most those of all threads that the launch
has; the loops' are what the op's own bytes leave over. The times are these bytes at the read rate of a plain read, not
measured: what a phase waits for, computes or takes to start is in none of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.diagnosis.findings import PERF, Finding
from kgen.diagnosis.words import cell
from kgen.records import PerfPoint

MAX_PROBLEMS = 2  # the worst timed, else the first
MAX_PHASES = 8
COUNTS = ("mma", "shuffles", "shared", "atomics", "barriers")
SPIN, WORD = 12, 8  # instructions, and bytes that a thread reads, of a loop that may be a wait
MOVES = ("store_bytes", "block_bytes", "bulk", "mma", "shared", "atomics")


@dataclass(frozen=True)
class Part:
    """A phase of a kernel at a problem. `bytes`: read outside of loops by all threads, 0 in a loop."""

    facts: Mapping[str, Any]
    bytes: float
    loads: bool  # whether it reads at all

    @property
    def loop(self) -> bool:
        return bool(self.facts.get("loop"))


def findings(problems: Mapping[str, Any], points: Sequence[PerfPoint], read: float) -> list[Finding]:
    """`problems`: the compile gate's evidence by problem key; `read`: bytes/s of a plain read."""
    worst = {p.problem: p for p in sorted(points, key=lambda p: p.ratio) if math.isfinite(p.ratio)}
    keys = [k for k, f in problems.items() if isinstance(f, Mapping) and _listed(f)]
    chosen = sorted(keys, key=lambda k: -worst[k].ratio if k in worst else math.inf)[:MAX_PROBLEMS]
    found = [_finding(key, problems[key], worst.get(key), read) for key in chosen]
    return [f for f in found if f.detail["phases"]]


def _finding(key: str, facts: Mapping[str, Any], point: PerfPoint | None, read: float) -> Finding:
    parts = list(_parts(facts))
    outside = sum(p.bytes for p in parts)
    total = max(outside, point.floor_us * read / 1e6 if point else 0.0)
    left = total - outside if any(p.loop and p.loads for p in parts) else 0.0
    loops = [p for p in parts if p.loop and p.loads]
    said, shares = [], {}
    for part in parts[:MAX_PHASES]:
        name = f"{cell(str(part.facts.get('kernel', '')))[:24]} {part.facts.get('name', '')}"
        what = _what(part)
        if part.loop and part.loads and left:
            alone = "" if len(loops) == 1 else "the loops together "
            what += f" = {alone}{_share(left, outside + left, point, read)}"
            shares[name] = left / (outside + left)
        elif part.bytes:
            what += f" = at most {_share(part.bytes, outside + left, point, read)}"
            shares[name] = part.bytes / (outside + left)
        said.append(f"{name}: {what}")
    more = f"; {len(parts) - MAX_PHASES} more phases" if len(parts) > MAX_PHASES else ""
    text = f"{cell(key)} static bytes by phase, times at the read rate: {'; '.join(said)}{more}"
    if point:
        rest = max(0.0, point.candidate_us - point.floor_us)
        text += f". Measured {point.candidate_us:.2f} us: {rest:.2f} us are in none"
    return Finding(PERF, 2, "phases", text, "", {"phases": len(parts), "shares": shares})


def _share(part: float, total: float, point: PerfPoint | None, read: float) -> str:
    share = part / total if total else 0.0
    seconds = share * point.floor_us if point else part / read * 1e6
    return f"{part / 1e6:.3g} MB, {seconds:.2f} us, {share:.0%}"


def _what(part: Part) -> str:
    facts, turn = part.facts, " and turn" if part.loop else ""
    words = [f"{facts.get('instructions', 0)} instructions"]
    if facts.get("load_bytes"):
        words.append(f"{facts['load_bytes']} B read a thread{turn}")
    if facts.get("block_bytes"):
        words.append(f"{facts['block_bytes']} B by bulk copies a block{turn}")
    elif facts.get("bulk"):
        words.append(f"{facts['bulk']} bulk copies{turn}")
    if facts.get("store_bytes"):
        words.append(f"{facts['store_bytes']} B written a thread{turn}")
    return ", ".join([*words, *(f"{facts[c]} {c}" for c in COUNTS if facts.get(c))])


def _parts(facts: Mapping[str, Any]) -> Iterator[Part]:
    """Phases of the kernels that are launched, as often as they are."""
    for launch in (x for x in facts.get("launches", ()) if isinstance(x, Mapping)):
        blocks = math.prod(launch.get("grid", (0,)))
        threads = blocks * math.prod(launch.get("block", (0,)))
        for phase in _listed(facts):
            if phase.get("kernel") == launch.get("kernel"):
                thread, block = phase.get("load_bytes", 0), phase.get("block_bytes", 0)
                outside = 0.0 if phase.get("loop") else float(thread * threads + block * blocks)
                if _waits(phase, facts.get("waits")):
                    yield Part({**phase, "name": "wait"}, 0.0, False)
                else:
                    yield Part(phase, outside, bool(thread or block or phase.get("bulk")))


def _waits(phase: Mapping[str, Any], kernels: Any) -> bool:
    """A loop that only reads one word, of a kernel that waits for a value (kgen.gates.spins), moves nothing."""
    small = int(phase.get("instructions", 0)) <= SPIN and int(phase.get("load_bytes", 0)) <= WORD
    waits = isinstance(kernels, list | tuple) and phase.get("kernel") in kernels
    return waits and small and bool(phase.get("loop")) and not any(phase.get(name) for name in MOVES)


def _listed(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = facts.get("phases")
    return [p for p in listed if isinstance(p, Mapping)] if isinstance(listed, list | tuple) else []
