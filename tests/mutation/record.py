"""The committed record of a mutation run, and the list of mutants that change nothing.

A mutant that no chosen test reaches counts as a survivor, like one that they reach and let pass. `equivalent.toml`
names a mutant by module, function and text, so that it does not depend on line numbers; each entry says why no test
can tell the mutant from the original.
"""

import hashlib
import json
import platform
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from mutation.areas import AREAS, DRIVERS, is_driver, test_files
from mutation.mutants import Mutant

FOLDER = Path(__file__).parent
RECORD, LISTED = FOLDER / "record.json", FOLDER / "equivalent.toml"
LEAST = 0.95  # of a module's mutants that are neither equivalent nor in a driver's function, so many must be killed


@dataclass(frozen=True)
class Equivalent:
    key: str
    reason: str


def equivalents(path: Path = LISTED) -> tuple[Equivalent, ...]:
    """The entries of the list. An entry gives one reason for one or several changes of a function."""
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", ()):
        for before, after in entry["changes"]:
            found.append(Equivalent(f"{entry['module']}:{entry['function']}: {before} -> {after}", entry["reason"]))
    return tuple(found)


@dataclass(frozen=True)
class Tried:
    """Results by mutant (killed, timeout, alive; what was not tried is not in it), and each module's last day."""

    results: Mapping[str, str]
    days: Mapping[str, str]


def summed(
    everything: Iterable[Mutant], tried: Tried, texts: Mapping[str, str], share: float, seed: int
) -> dict[str, Any]:
    """Counts by module and area; a driver's functions are counted apart, under `driver` of their module."""
    everything = tuple(everything)
    listed = {e.key for e in equivalents()}
    by_module: dict[str, dict[str, Any]] = {}
    for module, text in texts.items():
        own = [m for m in everything if m.module == module]
        part = _counted([m for m in own if not is_driver(module, m.function)], tried.results, listed)
        when = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "tried": tried.days.get(module, "")}
        by_module[module] = {**when, "whole": part["not_tried"] == 0, **part}
        if module in DRIVERS:
            driver, beside = DRIVERS[module], [m for m in own if is_driver(module, m.function)]
            said = {"functions": list(driver.functions), "reason": driver.reason}
            by_module[module]["driver"] = {**said, **_counted(beside, tried.results, listed)}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": "make mutation",
        "share": share,
        "seed": seed,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "pytest": pytest.__version__},
        "tests": {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in test_files()},
        "areas": {area: _area([by_module[m] for m in modules]) for area, modules in AREAS.items()},
        "modules": by_module,
    }


def _counted(own: list[Mutant], results: Mapping[str, str], listed: set[str]) -> dict[str, Any]:
    killed = [m.key for m in own if results.get(m.key) in ("killed", "timeout")]
    same = [m.key for m in own if m.key in listed and m.key not in killed]
    alive = [m.key for m in own if results.get(m.key) == "alive" and m.key not in listed]
    return {
        "mutants": len(own),
        "killed": len(killed),
        "timeouts": sum(results.get(m.key) == "timeout" for m in own),
        "equivalent": len(same),
        "survivors": alive,
        "not_tried": len(own) - len(killed) - len(same) - len(alive),
        "score": _score(len(killed), len(alive)),
    }


def _area(modules: list[dict[str, Any]]) -> dict[str, Any]:
    killed, alive = sum(m["killed"] for m in modules), sum(len(m["survivors"]) for m in modules)
    counted = {name: sum(m[name] for m in modules) for name in ("mutants", "killed", "equivalent", "not_tried")}
    return {**counted, "survivors": alive, "score": _score(killed, alive)}


def _score(killed: int, alive: int) -> float | None:
    """None where nothing was tried."""
    return round(killed / (killed + alive), 4) if killed + alive else None


def table(body: Mapping[str, Any]) -> list[str]:
    """For a terminal."""
    lines = [f"{'':36} mutants killed equivalent alive untried  score"]
    drivers = {f"{m} (driver)": row["driver"] for m, row in body["modules"].items() if "driver" in row}
    for name, row in {**body["areas"], **body["modules"], **drivers}.items():
        alive = row["survivors"] if isinstance(row["survivors"], int) else len(row["survivors"])
        counts = f"{row['mutants']:7} {row['killed']:6} {row['equivalent']:10} {alive:5} {row['not_tried']:7}"
        lines.append(f"{name:36} {counts} {'' if row['score'] is None else format(row['score'], '6.1%')}")
    return lines


def page(body: Mapping[str, Any]) -> list[str]:
    """The rows of the table in docs/gates.md."""
    lines = [
        "| area | mutants | killed | change nothing | alive | not tried | killed of those tried |",
        "|---|" + "---:|" * 6,
    ]
    for area, row in body["areas"].items():
        counts = (row["mutants"], row["killed"], row["equivalent"], row["survivors"], row["not_tried"])
        lines.append(f"| {area} | {' | '.join(map(str, counts))} | {row['score']:.1%} |")
    return lines


def write(body: Mapping[str, Any]) -> None:
    RECORD.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
