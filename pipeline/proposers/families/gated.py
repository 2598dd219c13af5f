"""Spaces of the tensor-core template of gate_up, SiTU, down, which moe_shared and dense_mlp share.

The template reads a tuning table, a row per range of tokens (and of weights). In a space each range has parameters of
its own, called `<name>_<tokens>`; what fits shared memory and registers is decided by `fits` at the op's widest point.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.point import Row
from kgen.proposers.families.space import Choice, Limit, Parameter, Point, Space

TEMPLATE = "moe_shared.py.tmpl"
TOKEN_RANGES = (8, 16, 32, 64)
HEAVY = 10**6  # MB of weights that a row serves at most: all
HIDDEN = 7168  # K of gate_up at the widest point
RESERVE = 2048  # bytes of shared memory that stay free
ONE_KERNEL_RESERVE = 112 * 1024  # bytes that the second stage of one kernel needs beside the first
STREAMED = {"w": 3, "x": "ring", "x_stages": 3, "down_w": 3, "down_x": "ring"}  # the stages of one kernel share memory
DOWN_RING = 3  # K steps of down's activations in flight, where all its weights are
ACCUMULATORS = 128  # float32 registers of a thread

DownRow = tuple[str | int, str, int, int]  # weights, activations, warps along K, along rows


@dataclass(frozen=True)
class Widths:
    """What differs between the ops. `splits`: row groups x K splits of gate_up; `octets`: its rows by 8 at most."""

    splits: Mapping[str, tuple[int, int]]
    down: Mapping[str, DownRow]
    one_down: tuple[str, ...]  # names of `down` for one kernel, where only their warps count
    octets: int
    queues: tuple[int, ...]  # K steps of gate_up's weights in flight
    warps: Mapping[str, tuple[int, int]]  # along K x along rows
    fixed: Mapping[str, Any] = field(default_factory=dict)


def row(
    split: tuple[int, int], warps: tuple[int, int], w: int, x: str, down: DownRow, pdl: bool = True, rows: int = 64
) -> dict[str, Any]:
    """One row of a tuning table. `w`: K steps of gate_up weights in flight; `rows`: outputs of a down CTA."""
    down_w, down_x, down_warps_k, down_warps_r = down
    ring = down_w if isinstance(down_w, int) else DOWN_RING
    return {
        "groups": split[0], "ksplit": split[1], "warps_k": warps[0], "warps_r": warps[1], "w": w, "x": x,
        "x_stages": w, "rows": rows, "down_warps_k": down_warps_k, "down_warps_r": down_warps_r, "down_w": down_w,
        "down_x": down_x, "down_x_stages": ring, "pdl": pdl,
    }  # fmt: skip


def fits(row: Row, tokens: int, reserve: int = RESERVE, octets: int = 96) -> bool:
    """Whether the queues of both stages fit shared memory, and the sums registers, at `octets` x 8 rows of K 7168.

    Down's is asked for only where its weights stream: a queue of all of K is for the widths that it was made for.
    """
    tiles_each = octets // row["groups"] // row["warps_r"]
    if tiles_each < 1 or octets % (row["groups"] * row["warps_r"]):
        return False
    token_tiles = (tokens + 7) // 8
    weights = 32 * row["warps_k"] * row["warps_r"] * 32 * tiles_each * row["w"]
    ring = 512 * row["warps_k"] * token_tiles * row["x_stages"]
    bulk = tokens * 2 * (HIDDEN // row["ksplit"] + 96)
    sums = 32 * (16 * (octets // row["groups"]) + 20) * token_tiles * row["warps_k"]  # they take the weights' place
    used = max(weights, sums) + (bulk if row["x"] == "bulk" else ring)
    fine = used < SMEM_BYTES - reserve and 4 * tiles_each * token_tiles <= ACCUMULATORS
    return fine and (not isinstance(row["down_w"], int) or _down_fits(row, token_tiles))


def _down_fits(row: Row, token_tiles: int) -> bool:
    tiles_each = row["rows"] // 16 // row["down_warps_r"]
    weights = 32 * row["down_warps_k"] * row["down_warps_r"] * 32 * tiles_each * row["down_w"]
    sums = 32 * (row["rows"] + 20) * token_tiles * row["down_warps_k"]
    used = max(weights, sums) + 512 * row["down_warps_k"] * token_tiles * row["down_x_stages"]
    return bool(tiles_each >= 1 and used < SMEM_BYTES - RESERVE and 4 * tiles_each * token_tiles <= ACCUMULATORS)


@dataclass(frozen=True)
class Table:
    """The template's values as a point of named parameters, and back, for one op and number of kernels."""

    widths: Widths
    kernels: int

    def space(self, name: str, share: float) -> Space:
        groups = {tokens: self._range(tokens) for tokens in TOKEN_RANGES}
        limits = tuple(
            Limit(tuple(p.name for p in group), partial(self._why, tokens=tokens)) for tokens, group in groups.items()
        )
        parameters = (Choice("pdl", (True, False)), *(p for group in groups.values() for p in group))
        fixed = self.widths.fixed
        return Space(name, TEMPLATE, parameters, limits, fixed, share, values=self._values, read=self._read)

    def _range(self, tokens: int) -> tuple[Parameter, ...]:
        """Parameters of one range of tokens."""
        options: dict[str, tuple[Any, ...]] = {
            "split": tuple(self.widths.splits),
            "warps": tuple(self.widths.warps),
            "rows": (32, 64),
            "down": self.widths.one_down,
        }
        if self.kernels == 2:
            options["down"] = tuple(k for k, v in self.widths.down.items() if tokens <= 16 or v[1] != "bulk")
            options["w"] = self.widths.queues
            if tokens <= 8:
                options["x"] = ("bulk", "ring")
        return tuple(Choice(f"{name}_{tokens}", given) for name, given in options.items())

    def _why(self, point: Point, tokens: int) -> str:
        reserve = ONE_KERNEL_RESERVE if self.kernels == 1 else RESERVE
        fine = fits(self._row(point, tokens), tokens, reserve, self.widths.octets)
        return "" if fine else f"the queues of up to {tokens} tokens do not fit shared memory"

    def _row(self, point: Point, tokens: int) -> dict[str, Any]:
        at = {name.removesuffix(f"_{tokens}"): value for name, value in point.items()}
        split, warps, down = (
            self.widths.splits[at["split"]],
            self.widths.warps[at["warps"]],
            self.widths.down[at["down"]],
        )
        if self.kernels == 1:
            return {**row(split, warps, 3, "ring", down, point["pdl"], at["rows"]), **STREAMED}
        return row(split, warps, at["w"], at.get("x", "ring"), down, point["pdl"], at["rows"])

    def _values(self, point: Point) -> Mapping[str, Any]:
        table = [[tokens, HEAVY, self._row(point, tokens)] for tokens in TOKEN_RANGES]
        return {"tuning": table, "kernels": self.kernels}

    def _read(self, values: Mapping[str, Any]) -> Point | None:
        """The point of a table of exactly these ranges, None for another table."""
        table = values.get("tuning", ())
        if [list(entry[:2]) for entry in table] != [[tokens, HEAVY] for tokens in TOKEN_RANGES]:
            return None
        point: dict[str, Any] = {"pdl": table[0][2]["pdl"]}
        for tokens, _, found in table:
            chosen = {
                "split": f"{found['groups']}x{found['ksplit']}",
                "warps": f"{found['warps_k']}x{found['warps_r']}",
                "rows": found["rows"],
                "down": self._down(found),
                "w": found["w"],
                "x": found["x"],
            }
            point |= {p.name: chosen[p.name.removesuffix(f"_{tokens}")] for p in self._range(tokens)}
        known = all(point[f"{name}_{t}"] in options for t in TOKEN_RANGES for name, options in self._tables())
        return point if known and self._values(point) == values else None

    def _tables(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        return (("split", self.widths.splits), ("warps", self.widths.warps), ("down", self.widths.down))

    def _down(self, found: Row) -> str:
        """The name of a row's down columns, "" for none of ours."""
        columns = ("down_w", "down_x", "down_warps_k", "down_warps_r")
        if self.kernels == 2:
            wanted = tuple(found[c] for c in columns)
            return next((k for k, v in self.widths.down.items() if v == wanted), "")
        wanted = tuple(found[c] for c in columns[2:])
        return next((k for k in self.widths.one_down if self.widths.down[k][2:] == wanted), "")
