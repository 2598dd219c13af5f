"""On the GPU host: kernels that fault or hang through unit-numeric, each followed by the right one, which must pass.

Every candidate runs as in a run of kgen: a runner process of its own, deadline, kill, probe of the device, lease. The
result is written after every step. Not here: the kernels, which come as objects. Needs kgen.gates and torch.
"""

import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

DEADLINE, STALL = 60.0, 8.0
SCHEMA = "kgen.runner-faults/1"
USAGE = "usage: python3 FILE.pyz OUT.json\n"
Record = dict[str, Any]
Spec = Callable[[Record, Path], Any]  # a line of the table, the unpacked pack -> what a runner loads


class Kept(logging.Handler):
    """What kgen said about the device."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def taken(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def order(keys: Sequence[str], right: str) -> list[str]:
    """The right one after each of the others."""
    return [key for wrong in keys if wrong != right for key in (wrong, right)]


def main(arguments: Sequence[str], root: Path, info: Record, command: Sequence[str] = ()) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 2
    result = perform(Path(arguments[0]), root, info, built, "cuda")
    return 0 if result["as_expected"] else 1


def built(line: Record, root: Path) -> Any:
    """An object of the pack."""
    from kgen.gates.kit_units import Carried
    from kgen.gates.runner.job import spec
    from kgen.records import BuildRecord, from_json

    record = from_json(BuildRecord, line["build"])
    return spec(Carried(record, root / "objects" / f"{record.object_sha256}.o"))


def perform(target: Path, root: Path, info: Record, to_spec: Spec, device: str, stall: float = STALL) -> Record:
    from kgen.gates.environment import environment
    from kgen.records import to_json

    logger, kept = logging.getLogger("kgen.gates.gpu"), Kept()
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    lines: Mapping[str, Record] = {line["key"]: line for line in info["kernels"]}
    began = time.monotonic()
    result: Record = {"schema": SCHEMA, "pack": info["digest"], "environment": to_json(environment()), "steps": []}
    result["kernels"] = {
        key: {n: v for n, v in line.items() if n not in ("key", "build")} for key, line in lines.items()
    }
    result["system"] = platform.release()
    for key in order(list(lines), info["right"]):
        step = {"kernel": key, **judged(to_spec(lines[key], root), root, device, stall), "said": kept.taken()}
        result["steps"].append(step)
        result["seconds"] = round(time.monotonic() - began, 1)
        result["as_expected"] = all(
            [s["status"], s["code"]] == lines[s["kernel"]]["expected"] and not s["quarantined"] for s in result["steps"]
        )
        target.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
        say(f"{key}: {step['status']} {step['code']} in {step['seconds']} s: {step['message']}")
    say(f"{'all as expected' if result['as_expected'] else 'NOT as expected'}, {result['seconds']} s")
    logger.removeHandler(kept)
    return result


def judged(spec: Any, root: Path, device: str, stall: float) -> Record:
    """One candidate through the gate, and whether anything of it is left."""
    from kgen.gates import numeric
    from kgen.gates.gpu import lease, quarantine
    from kgen.ops import REGISTRY

    began = time.monotonic()
    op = REGISTRY.get(spec.problem.op)
    cache = root / "linked"
    got = numeric.run_specs(op, [spec], cache=cache, device=device, deadline=DEADLINE, stall=stall, sanitize=False)
    return {
        "status": got.status.value,
        "code": got.code,
        "message": got.message,
        "seconds": round(time.monotonic() - began, 1),
        "runner_seconds": got.evidence.get("runner_seconds"),
        "quarantined": [str(record) for record in quarantine.listed()],
        "lease_is_free": lease.current() is None,
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
