"""compute-sanitizer over one call of each distinct kernel: memcheck, racecheck, synccheck.

    run(op, specs, cache=..., device=...) -> {"memcheck": {"status": "pass" | "fail" | "skip", ...}, ...}
    complaints(results) -> one line per tool that found something

One process a tool runs one artefact of every design (the smallest problem of each). Where the tool is missing or
refuses the machine the answer is a skip with its reason. Buffers have no guards there and each its own allocation, so
that an access past the end is past an allocation.
"""

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
DEADLINE_SECONDS = 240.0
PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")
LINES_KEPT = 12
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def find_tool() -> str | None:
    found = shutil.which("compute-sanitizer")
    return found or next((p for p in PLACES if Path(p).exists()), None)


def representatives(op: Op, specs: Sequence[LoadSpec]) -> list[LoadSpec]:
    """One artefact of every (dims, design), the fewest tokens of each."""
    chosen: dict[tuple[str, str], LoadSpec] = {}
    for spec in sorted(specs, key=lambda s: s.problem.tokens):
        chosen.setdefault((spec.problem.dims, spec.design), spec)
    return list(chosen.values())


def errors_found(log: str) -> int | None:
    """The tool's own count, None when it printed no summary."""
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    return sum(counts) if counts else None


def run(op: Op, specs: Sequence[LoadSpec], *, cache: Path, device: str) -> dict[str, Any]:
    """Results by tool, JSON data."""
    tool = find_tool()
    if device == "cpu" or tool is None:
        reason = "no GPU run" if device == "cpu" else "compute-sanitizer is not installed"
        return {name: {"status": "skip", "reason": reason} for name in TOOLS}
    chosen = representatives(op, [s for s in specs if s.engine == ARTEFACT])
    return {name: _run_tool(tool, name, op, chosen, cache, device) for name in TOOLS}


def _run_tool(tool: str, name: str, op: Op, chosen: Sequence[LoadSpec], cache: Path, device: str) -> dict[str, Any]:
    family = op.families[0].name
    items = [
        {"spec": to_json(s), "checks": [to_json(Check(i, FAMILY, family, seed=i + 1, repeats=0))]}
        for i, s in enumerate(chosen)
    ]
    job = {"items": items, "cache": str(cache), "device": device, "inputs_on": "cpu", "guard": 0}
    wrap = (tool, "--tool", name, "--report-api-errors", "no", "--print-limit", "20")
    with running("numeric", job, deadline=DEADLINE_SECONDS, wrap=wrap, extra_environment=ENVIRONMENT) as outcome:
        log, status, seconds = outcome.log, outcome.status, outcome.seconds
        message = outcome.message
    found = errors_found(log)
    told = [line for line in log.splitlines() if line.startswith("=====")][:LINES_KEPT]
    facts = {"points": [s.problem.key for s in chosen], "seconds": round(seconds, 1)}
    if found:
        return {"status": "fail", "errors": found, "report": told, **facts}
    if status == "done" and found == 0:
        return {"status": "pass", "errors": 0, **facts}
    return {"status": "skip", "reason": message or "the tool printed no summary", "report": told, **facts}


def complaints(results: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {result['errors']} errors: {' '.join(line.strip('= ') for line in result['report'][1:4])}"
        for name, result in results.items()
        if result["status"] == "fail"
    ]
