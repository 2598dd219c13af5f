"""Rows of the benchmark: one a prompt set, proposer and model; kept in a file, shown as a table, compared.

    add(path, row)           into the file
    compared(rows, row)      the row beside the latest one of other prompts, of the same proposer and model, in words

A change of the prompts is merged with the rows of the new set: a test compares the set's hash with the file.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import kgen
from kgen.bench.running import Result
from kgen.proposers.render import packaged
from kgen.records import GATES, RecordError, from_json, strict_json, to_json
from kgen.store.durable import DURABLE
from kgen.store.errors import IntegrityError

SUMS = (*GATES[:2], "staged", "within 1.25×", "USD to staged", "USD to within 1.25×", "USD in all")
HEAD = ("problem", "candidates", *GATES[:2], "staged", "within 1.25×", "best/known", "USD", "tokens", "ended")


@dataclass(frozen=True)
class Row:
    """`prompts`: sha256 of the prompt set; `load`: of the machine, before it."""

    SCHEMA: ClassVar[str] = "kgen.bench-row/1"
    prompts: str
    proposer: str
    model: str
    seed: int
    kgen: str
    cores: int
    load: float
    results: tuple[Result, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.prompts, self.proposer, self.model

    @property
    def breaches(self) -> list[str]:
        return [f"{r.problem}: {text}" for r in self.results for text in r.breaches]


def row(proposer: str, model: str, seed: int, load: float, results: Sequence[Result]) -> Row:
    """With the prompt set, the version and the machine of now."""
    prompts, cores = packaged().sha256, os.cpu_count() or 1
    return Row(prompts, proposer, model, seed, kgen.__version__, cores, round(load, 2), tuple(results))


def read(path: Path) -> tuple[Row, ...]:
    """Raises IntegrityError."""
    try:
        return tuple(from_json(Row, value) for value in strict_json(path.read_bytes())) if path.exists() else ()
    except (RecordError, TypeError) as error:
        raise IntegrityError(f"{path}: {error}") from None


def add(path: Path, new: Row) -> tuple[Row, ...]:
    """Put a row into the file, in the place of an earlier one of the same prompts, proposer and model."""
    rows = (*(r for r in read(path) if r.key != new.key), new)
    DURABLE.write(path, (json.dumps(to_json(rows), indent=1, ensure_ascii=False) + "\n").encode())
    return rows


def lines(row: Row) -> list[list[str]]:
    """The table's rows, the last one the sum."""
    return [line(r) for r in row.results] + [_total(row.results)]


def line(r: Result) -> list[str]:
    """One problem's cells, as HEAD names them."""
    gates = ["/".join(map(str, r.gates.get(gate, (0, 0)))) for gate in GATES[:2]]
    times = [_until(r.staged_s, r.staged_usd), _until(r.near_s, r.near_usd)]
    ratio = f"{r.ratio:.2f}" if r.ratio is not None else "-"
    return [r.problem, str(r.candidates), *gates, *times, ratio, f"{r.usd:.2f}", str(r.tokens), r.ended]


def _until(seconds: float | None, usd: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s" + (f", {usd:.4f} USD" if usd else "")


def compared(rows: Sequence[Row], new: Row) -> str:
    """One line; "" where no other prompts have a row of this proposer and model. Of problems that both rows have."""
    others = [r for r in rows if (r.proposer, r.model) == (new.proposer, new.model) and r.prompts != new.prompts]
    if not others:
        return ""
    names = {r.problem for r in others[-1].results} & {r.problem for r in new.results}
    old, now = ([r for r in row.results if r.problem in names] for row in (others[-1], new))
    parts = [f"{name} {a} -> {b}" for name, a, b in zip(SUMS, _sums(old), _sums(now), strict=True)]
    whose = " ".join(filter(None, (new.proposer, new.model)))
    return f"{whose}, prompts {others[-1].prompts[:12]} -> {new.prompts[:12]}: {', '.join(parts)}"


def _sums(results: Sequence[Result]) -> list[str]:
    """As SUMS names them."""
    gates = []
    for gate in GATES[:2]:
        passed, judged = (sum(r.gates.get(gate, (0, 0))[n] for r in results) for n in (0, 1))
        gates.append(f"{passed}/{judged}")
    counts = [sum(getattr(r, name) is not None for r in results) for name in ("staged_s", "near_s")]
    usd = [sum(getattr(r, name) or 0.0 for r in results) for name in ("staged_usd", "near_usd", "usd")]
    return [*gates, *(f"{n}/{len(results)}" for n in counts), *(f"{x:.4f}" for x in usd)]


def _total(results: Sequence[Result]) -> list[str]:
    gates, usd = _sums(results)[:4], sum(r.usd for r in results)
    tokens = str(sum(r.tokens for r in results))
    return ["all", str(sum(r.candidates for r in results)), *gates, "", f"{usd:.2f}", tokens, ""]
