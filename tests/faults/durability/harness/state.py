"""What lies in a folder, with what differs from one time to the next taken out; and what is wrong with a set."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.sets import CURRENT

from kgen.promotion import verify
from kgen.records import Manifest
from kgen.store import KernelSet, SetPath
from kgen.store.durable import LOCK_NAME, TEMP_PREFIX

TIMES = frozenset({"promoted", "when", "checksum", "created", "finished", "seconds", "started", "id", "cached"})
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[a-z0-9_]+-[0-9a-f]{6}")
MADE_AGAIN = ("graph.sqlite", "report.md")  # derived: there or not, no two alike

State = dict[str, Any]


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMES}
    if isinstance(value, list):
        return [timeless(v) for v in value]
    return RUN_ID.sub("RUN", value) if isinstance(value, str) else value


def content(path: Path) -> Any:
    data = path.read_bytes()
    if path.name == "kit.key":  # drawn for each run
        return len(data)
    if path.suffix == ".json" and path.name.count(".") == 1:
        with suppress(ValueError):
            return timeless(json.loads(data))
    return data


def state(root: Path) -> State:
    """Files by name, without locks, orphans and what is derived. JSON is read where times may differ."""
    found: State = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = path.relative_to(root)
        hidden = any(part.startswith(TEMP_PREFIX) for part in name.parts)
        if not hidden and path.name != LOCK_NAME and not path.name.startswith(MADE_AGAIN):
            found[RUN_ID.sub("RUN", str(name))] = content(path)
    return found


def orphans(root: Path) -> list[str]:
    return [p.name for p in root.rglob(f"{TEMP_PREFIX}*")]


def damage(folder: Path) -> str:
    """The first thing that is bad about a set, "" for nothing."""
    return next((f"{f.check}: {f.message}" for f in verify(SetPath(folder), CURRENT).findings if f.outcome == "bad"), "")


def manifest(folder: Path) -> Manifest:
    return KernelSet(folder).manifest()


def differing(one: State, other: State) -> str:
    return next((k for k in sorted({*one, *other}) if one.get(k) != other.get(k)), "nothing")
