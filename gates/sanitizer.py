"""compute-sanitizer over one call of each distinct kernel: memcheck, racecheck, synccheck.

    run(op, specs, cache=..., device=...) -> {"memcheck": {"status": "pass" | "fail" | "skip", ...}, ...}
    complaints(results) -> one line per tool that found something

One process a tool runs one artefact of every design that the candidate names (the smallest problem of each). What
passed is remembered in the cache, so that a sweep in pieces does not repeat it. Where the tool is missing or refuses
the machine the answer is a skip with its reason. Buffers have no guards there and each its own allocation, so that an
access past the end is past an allocation.
"""

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.contract import Op
from kgen.gates.runner.host import running
from kgen.gates.runner.job import ARTEFACT, LoadSpec
from kgen.gates.runner.numeric import FAMILY, Check
from kgen.records import to_json

TOOLS = ("memcheck", "racecheck", "synccheck")
DEADLINE_SECONDS = 150.0
ALL_SECONDS = len(TOOLS) * DEADLINE_SECONDS
PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")
LINES_KEPT = 12
# synccheck keeps track of so many barriers in shared memory; with more of them it says nothing of any
OPTIONS: Mapping[str, tuple[str, ...]] = {"synccheck": ("--num-cuda-barriers", "65536")}
ALWAYS = ("--report-api-errors", "no", "--show-backtrace", "no", "--print-limit", "20")  # frames would crowd out words
OVERFLOW = "Detected overflow of tracked cuda::barrier structures"
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def find_tool() -> str | None:
    found = shutil.which("compute-sanitizer")
    return found or next((p for p in PLACES if Path(p).exists()), None)


def representatives(specs: Sequence[LoadSpec]) -> list[LoadSpec]:
    """One artefact of every design, that with the fewest tokens (then the first dims by name)."""
    chosen: dict[str, LoadSpec] = {}
    for spec in sorted(specs, key=lambda s: (s.problem.tokens, s.problem.dims)):
        chosen.setdefault(spec.design, spec)
    return list(chosen.values())


def _mark(cache: Path, tool: str, spec: LoadSpec) -> Path:
    """The file that says: this tool found nothing in this design of this candidate, on this machine."""
    text = "\n".join([spec.candidate, spec.problem.op, spec.problem.arch, spec.design, tool])
    return cache / "sanitized" / hashlib.sha256(text.encode()).hexdigest()[:32]


def errors_found(log: str) -> int | None:
    """The tool's own count, None when it printed no summary."""
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    return sum(counts) if counts else None


def _headlines(log: str) -> list[str]:
    """What the tool reports, but for its frame and the overflow."""
    lines = [line.strip("= ") for line in log.splitlines() if line.startswith("=====")]
    frame = ("", "COMPUTE-SANITIZER")
    return [text for text in lines if text not in frame and OVERFLOW not in text and "SUMMARY" not in text]


def run(op: Op, specs: Sequence[LoadSpec], *, cache: Path, device: str) -> dict[str, Any]:
    """Results by tool, JSON data."""
    tool = find_tool()
    if device == "cpu" or tool is None:
        reason = "no GPU run" if device == "cpu" else "compute-sanitizer is not installed"
        return {name: {"status": "skip", "reason": reason} for name in TOOLS}
    chosen = representatives([s for s in specs if s.engine == ARTEFACT])
    return {name: _run_tool(tool, name, op, chosen, cache, device) for name in TOOLS}


def _run_tool(tool: str, name: str, op: Op, chosen: Sequence[LoadSpec], cache: Path, device: str) -> dict[str, Any]:
    fresh = [s for s in chosen if not _mark(cache, name, s).exists()]
    designs = [s.design for s in chosen]
    if not fresh:
        return {"status": "pass", "designs": designs, "earlier": len(chosen), "seconds": 0.0}
    family = op.families[0].name
    items = [
        {"spec": to_json(s), "checks": [to_json(Check(i, FAMILY, family, seed=i + 1, repeats=0))]}
        for i, s in enumerate(fresh)
    ]
    job = {"items": items, "cache": str(cache), "device": device, "inputs_on": "cpu", "guard": 0}
    wrap = (tool, "--tool", name, *OPTIONS.get(name, ()), *ALWAYS)
    with running("numeric", job, deadline=DEADLINE_SECONDS, wrap=wrap, extra_environment=ENVIRONMENT) as outcome:
        found = errors_found(outcome.log)
        told = [line for line in outcome.log.splitlines() if line.startswith("=====")][:LINES_KEPT]
    facts = {"designs": designs, "points": [s.problem.key for s in fresh], "seconds": round(outcome.seconds, 1)}
    if OVERFLOW in outcome.log and not _headlines(outcome.log):  # it says nothing of any barrier then
        return {"status": "skip", "reason": "the kernel has more barriers than the tool can follow", **facts}
    if found or OVERFLOW in outcome.log:
        return {"status": "fail", "errors": found or 1, "report": told, **facts}
    if outcome.status != "done" or found is None:
        return {"status": "skip", "reason": outcome.message or "the tool printed no summary", "report": told, **facts}
    for spec in fresh:
        mark = _mark(cache, name, spec)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return {"status": "pass", **facts}


def complaints(results: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {result['errors']} errors: {' '.join(line.strip('= ') for line in result['report'][1:4])}"
        for name, result in results.items()
        if result["status"] == "fail"
    ]
