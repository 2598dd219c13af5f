"""What lies in a folder, with what differs from one time to the next taken out; and what is wrong with a set."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.durability.harness.jobs import RUNS, SET
from support.sets import CURRENT

from kgen.promotion import verify
from kgen.records import Manifest
from kgen.store import IntegrityError, KernelSet, Runs, SetPath
from kgen.store.durable import LOCK_NAME, TEMP_PREFIX

TIMES = frozenset(
    {"promoted", "when", "checksum", "created", "finished", "seconds", "costs", "started", "id", "cached"}
)
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
    return next(
        (f"{f.check}: {f.message}" for f in verify(SetPath(folder), CURRENT).findings if f.outcome == "bad"), ""
    )


def manifest(folder: Path) -> Manifest:
    return KernelSet(folder).manifest()


def differing(one: State, other: State) -> str:
    return next((k for k in sorted({*one, *other}) if one.get(k) != other.get(k)), "nothing")


def unlike(root: Path, ends: tuple[State, State]) -> str:
    """Why the folder is neither as before nor as after. Parts that no manifest names yet may lie in it."""
    if breach := damage(root / SET):
        return f"damaged: {breach}"
    if breach := run_lost(root, []):
        return breach
    name = f"{SET}/manifest.json"
    now = state(root)
    if now.get(name) not in [end.get(name) for end in ends]:
        return "neither before nor after"
    for end in ends:
        if now.get(name) == end.get(name) and not all(now.get(k) == v for k, v in end.items() if k[:4] != RUNS):
            return f"lost: {differing(now, end)}"
    return ""


def run_lost(root: Path, told: list[str]) -> str:
    """What of a run that had been told is not there, or is not whole."""
    facts: dict[str, list[str]] = {}
    for kind, *rest in map(str.split, told):
        facts.setdefault(kind, []).append(rest[0] if rest else "")
    try:
        runs = {run.id: run for run in Runs(root / RUNS).list()}
        for run in runs.values():
            run.key()
            for folder in run.folders():
                folder.candidate(), folder.result("compile"), folder.verdict()
        if lost := [i for i in facts.get("run", []) if i not in runs]:
            return f"lost: run {lost[0]}"
        folders = {f.path.name: f for run in runs.values() for f in run.folders()}
        for kind, has in (
            ("candidate", lambda f: True),
            ("result", lambda f: f.result("compile") is not None),
            ("verdict", lambda f: f.verdict() is not None),
        ):
            if lost := [n for n in facts.get(kind, []) if n not in folders or not has(folders[n])]:
                return f"lost: {kind} of {lost[0]}"
        if "finished" in facts and not all(run.info.finished for run in runs.values()):
            return "lost: the end of the run"
    except IntegrityError as error:
        return f"damaged: {error}"
    return ""
