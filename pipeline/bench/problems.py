"""The fixed set: op, points and limits of each problem, and apart from them what is expected and told to no proposer.

problems.jsonl has the problems with their expectations, recorded.jsonl a right answer to each, which `replay` gives
again behind a copy of it with a planted fault. No layer that a proposer can import reads either file.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import ClassVar

from kgen.records import from_json


@dataclass(frozen=True)
class Hidden:
    """`best_us`: the lowest static cost known at the problem's points. `plant`: text of the recorded answer and what
    replaces it; a gate has to refuse that under `plant_code`."""

    SCHEMA: ClassVar[str] = "kgen.bench-hidden/1"
    best_us: float
    plant: tuple[str, str]
    plant_code: str


@dataclass(frozen=True)
class BenchProblem:
    """What is asked, and how much may be spent on it."""

    SCHEMA: ClassVar[str] = "kgen.bench-problem/1"
    name: str
    op: str
    dims: str
    bins: tuple[int, ...]
    rounds: int
    candidates: int
    minutes: float
    hidden: Hidden


def _lines(name: str) -> list[str]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line]


def problems() -> tuple[BenchProblem, ...]:
    return tuple(from_json(BenchProblem, json.loads(line)) for line in _lines("problems.jsonl"))


def recorded(problem: BenchProblem) -> tuple[str, str]:
    """Sources: with the planted fault, and right. Raises ValueError when the fault has no place in the text."""
    answers = {entry["problem"]: str(entry["source"]) for entry in map(json.loads, _lines("recorded.jsonl"))}
    right, (before, after) = answers[problem.name], problem.hidden.plant
    if right.count(before) != 1:
        raise ValueError(f"{problem.name}: {before!r} stands {right.count(before)} times in its recorded answer")
    return right.replace(before, after), right
