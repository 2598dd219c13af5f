"""The record of what bounds the kernels: what a GPU host wrote, a line a variant, and what each variant saves.

taken(result) -> text of the record          complaints(record) -> what is wrong with it, one line each
Point.of(row)                                 medians, and what each variant saves, in µs
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bounding.variants import BASE, EMPTY

from kgen.gates.runner.ncu import METRICS
from kgen.store.kernelset import parse_problem

RECORD = Path(__file__).parents[2] / "benchmarks" / "bounds.json"
SCHEMA = "kgen.bounds/1"
MACHINE = ("gpu", "driver", "cuda", "torch", "python")
COMMAND = "python3 bounds.pyz --out FILE; PYTHONPATH=tests python benchmarks/bounds.py take FILE"
Json = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One kernel at one count of tokens. `us`: median of each variant, BASE among them; `saved`: of single stages."""

    op: str
    candidate: str
    tokens: int
    us: Mapping[str, float]
    left: Mapping[str, str]
    alone: tuple[str, ...]
    failed: Mapping[str, str]
    counters: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Point":
        lines: Sequence[Json] = row["variants"]
        return cls(
            str(row["op"]),
            str(row["candidate"]),
            int(row["tokens"]),
            {v["name"]: statistics.median(v["us"]) for v in lines if v["us"]},
            {v["name"]: str(v["left"]) for v in lines},
            tuple(v["name"] for v in lines if v["alone"] and v["name"] != EMPTY),
            {v["name"]: str(v["error"]) for v in lines if v["error"]},
            row["counters"],
        )

    @property
    def saved(self) -> dict[str, float]:
        """µs that leaving out one stage saves, the largest first; negative where it takes longer without."""
        stages = {n: self.us[BASE] - us for n, us in self.us.items() if n not in (BASE, EMPTY, *self.alone)}
        return dict(sorted(stages.items(), key=lambda each: -each[1]))


def taken(result: Mapping[str, Any]) -> str:
    """The record's file from a host's. Raises ValueError for what is no such result."""
    if result.get("schema") != SCHEMA or not result.get("points"):
        raise ValueError(
            f"no result of bounds.pyz: its schema is {result.get('schema')!r}, and it has no points or some"
        )
    machine = {name: result["environment"][name] for name in MACHINE}
    rows = [_row(result, key) for key in result["points"]]
    rows.sort(key=lambda r: (r["op"], r["candidate"], r["tokens"]))
    body = ",\n".join(_text(row) for row in rows)
    head = {"schema": SCHEMA, "command": COMMAND, "machine": machine}
    return json.dumps(head)[:-1] + f', "points": [\n{body}\n]}}\n'


def _row(result: Mapping[str, Any], key: str) -> Json:
    point = result["points"][key]
    variants = [
        {**v, "us": point["us"].get(v["name"], []), "error": result["failed"].get(f"{key} {v['name']}", "")}
        for v in point["variants"]
    ]
    counted = result["counters"].get(key, {})
    facts = {name: point[name] for name in ("op", "candidate", "problem", "tokens", "sets", "calls", "warm")}
    return {
        **facts,
        "counters": counted.get("kernels", {}),
        "uncounted": counted.get("skipped", "" if counted else "not asked for, or no time was left"),
        "variants": variants,
    }


def _text(row: Json) -> str:
    """A line a variant."""
    head = json.dumps({k: v for k, v in row.items() if k != "variants"})
    return head[:-1] + ', "variants": [\n ' + ",\n ".join(json.dumps(v) for v in row["variants"]) + "]}"


def points(record: Mapping[str, Any], op: str) -> list[Point]:
    """Of one op, as they stand in the record."""
    return [Point.of(row) for row in record["points"] if row["op"] == op]


def complaints(record: Mapping[str, Any]) -> list[str]:
    """Points without the kernel's own time, times that are none, variants without an object, unknown counters."""
    found = []
    for row in record["points"]:
        where = f"{row['op']} {row['candidate']} t{row['tokens']}"
        problem = parse_problem(row["problem"])
        if (problem.op, problem.tokens) != (row["op"], row["tokens"]):
            found.append(f"{where}: its problem is {row['problem']}")
        names = [v["name"] for v in row["variants"]]
        if names[:1] != [BASE] or len(set(names)) < len(names):
            found.append(f"{where}: its variants are {', '.join(names)}; the first has to be {BASE!r}, each once")
        if not row["variants"][0]["us"]:
            found.append(f"{where}: the kernel itself was not timed")
        for v in row["variants"]:
            if bool(v["us"]) == bool(v["error"]) or not all(us > 0 for us in v["us"]):
                found.append(f"{where} {v['name']}: it has either times or an error")
        objects = [v["object_sha256"] for v in row["variants"]]
        if len(set(objects)) < len(objects):
            found.append(f"{where}: two variants are the same object")
        if strange := {m for kernel in row["counters"].values() for m in kernel} - set(METRICS):
            found.append(f"{where}: no counter is named {', '.join(sorted(strange))}")
    return found
