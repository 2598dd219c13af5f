"""Fuzz every target for a budget and write the record: `python -m fuzz.run` (or `make fuzz`), from tests/.

    --seconds 60        CPU time of each target   --target NAME     only these: the record keeps the rows of the others
    --no-record         leave the record alone
    --found FOLDER      where inputs that break a promise are put (default: a temporary folder, printed)

Exit status 1 when something was found: give each input a name in tests/fuzz/cases/, and mend the parser.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from fuzz import work
from fuzz.cases import cases
from fuzz.target import FOLDER
from fuzz.targets import TARGETS

RECORD = FOLDER / "record.json"
ROOT = FOLDER.parents[1]
SECONDS = 60  # of CPU time
SEED = 1
BUSY = 20  # how many times longer a busy machine may take
PACKAGES = ("atheris", "hypothesis", "numpy", "openai", "llguidance", "torch")
SOURCES = (
    "pipeline/records",
    "pipeline/store",
    "pipeline/proposers",
    "gates/audit",
    "gates/builder",
    "gates/ptx",
    "gates/runner",
)


def fuzz(name: str, seconds: int, found: Path) -> dict[str, Any]:
    """Counts of one target, fuzzed in a fork. If that dies, the last input is a crash too."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            log = os.open(found / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            work.main(name, seconds, SEED, found)
        except BaseException:  # noqa: BLE001  a mutator's own fault: the log says which
            traceback.print_exc()
        finally:
            os._exit(status)
    died = _ended(pid, time.monotonic() + BUSY * seconds)
    path = found / f"{name}.json"
    counts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"executions": 0, "crashes": {}}
    if died:
        counts["crashes"][died] = "last"
    return counts


def _ended(pid: int, deadline: float) -> str:
    """ "" when the fork ended well."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return f"the process ended with status {code}" if code else ""
        time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "the process did not end"


def sources() -> str:
    """One hash over the parsers and the targets: another one means that the record is of other code."""
    files = [p for folder in (*SOURCES, "tests/fuzz") for p in sorted((ROOT / folder).rglob("*.py"))]
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in files)).hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {"python": platform.python_version(), **found}


def record(counted: dict[str, dict[str, Any]], seconds: int) -> dict[str, Any]:
    kept = {name: sum(path.parent.name == name for path in cases()) for name in TARGETS}
    rows = {
        name: {
            "engine": counts.get("engine", "none"),
            "executions": counts["executions"],
            "seconds": counts.get("seconds", 0.0),
            "crashes": len(counts["crashes"]),
            "cases": kept[name],
        }
        for name, counts in counted.items()
    }
    old = json.loads(RECORD.read_text())["targets"] if RECORD.exists() else {}
    return {
        "command": f"make fuzz FUZZ_SECONDS={seconds}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "sources_sha256": sources(),
        "versions": _versions(),
        "targets": {name: {**old, **rows}[name] for name in TARGETS if name in {**old, **rows}},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzz the parsers of foreign bytes")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--target", action="append", choices=list(TARGETS), default=[])
    parser.add_argument("--found", type=Path)
    parser.add_argument("--no-record", action="store_true")
    args = parser.parse_args()
    found = args.found or Path(tempfile.mkdtemp(prefix="kgen-fuzz-found-"))
    found.mkdir(parents=True, exist_ok=True)
    counted = {}
    work.instrument()
    for name in args.target or TARGETS:
        counted[name] = fuzz(name, args.seconds, found)
        print(f"{name}: {counted[name]['executions']} executions, {len(counted[name]['crashes'])} crashes", flush=True)
        if counted[name]["crashes"]:
            print(f"  inputs in {found / name}")
        for signature, detail in counted[name]["crashes"].items():
            print(f"  {signature} ({detail[:160]})", flush=True)
    if not args.no_record:
        RECORD.write_text(json.dumps(record(counted, args.seconds), indent=1) + "\n")
    return int(any(counts["crashes"] for counts in counted.values()))


if __name__ == "__main__":
    sys.exit(main())
