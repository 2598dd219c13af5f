"""Tries every case at every point, and writes down what was seen: record.json beside the cases.

    PYTHONPATH=tests python -m faults.durability.harness.record [CASE...]       all of them, or some anew

`writers` is the hash of the code that the cases are about: with other code there, the record is of the past.
"""

import ast
import json
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults.durability.harness.case import cases
from faults.durability.harness.desk import Desk

import kgen
from kgen.records import sha256_text

FILE = Path(__file__).parents[1] / "record.json"
COMMAND = "PYTHONPATH=tests python -m faults.durability.harness.record"
WRITERS = (
    "store/durable.py",
    "store/candidates.py",
    "store/runs.py",
    "promotion/promote.py",
    "promotion/rollback.py",
)


def writers() -> str:
    """The hash of the code of these modules, whatever their comments say."""
    root = Path(str(kgen.__file__)).parent
    return sha256_text("\n".join(ast.dump(ast.parse((root / name).read_text(encoding="utf-8"))) for name in WRITERS))


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def main(chosen: list[str]) -> str:
    """Returns what hinders it, "" for nothing."""
    known = cases()
    if strange := [name for name in chosen if name not in known]:
        return f"no case {strange[0]}; there are {', '.join(known)}"
    kept = recorded() if FILE.exists() and chosen else {"cases": {}, "changes": {}}
    if chosen and kept.get("writers", writers()) != writers():
        return f"the others on record are of other code, so all have to be tried: {COMMAND}"
    desk = Desk(every=True)
    try:
        for name in chosen or known:
            before, started = desk.tried.total(), time.monotonic()
            seen = known[name].real(desk)
            tried, seconds = desk.tried.total() - before, round(time.monotonic() - started, 1)
            kept["cases"][name] = {"seen": seen, "tried": tried, "seconds": seconds}
            write(kept, desk)
            print(f"{name}: {seen}, {tried} tried, {seconds} s", file=sys.stderr, flush=True)
    finally:
        desk.close()
    return ""


def write(kept: dict[str, Any], desk: Desk) -> None:
    about = {
        "schema": "kgen.durability-record/1",
        "command": COMMAND,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, file system in memory, power cuts modelled",
        "writers": writers(),
        "cases": dict(sorted(kept["cases"].items())),
        "changes": dict(sorted({**kept["changes"], **desk.changes}.items())),
        "tried": sum(entry["tried"] for entry in kept["cases"].values()),
    }
    FILE.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
