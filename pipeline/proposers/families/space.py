"""The parameter spaces behind `search`, and how a point of one becomes a candidate's source.

A family is a template (CuTe DSL source with a tuning table or a few constants), known good points first, and a seeded
sampler of others. Sampled points are kept within what fits an SM; whether they are right and fast, the gates say.
"""

import functools
import importlib.resources
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from kgen.gates.audit.limits import SMEM_BYTES

Row = Mapping[str, Any]
FIXED = ("outputs", "inputs")  # values of a variant that belong to its op, not to the space


@dataclass(frozen=True)
class Variant:
    """A point: a template and the values it is rendered with (JSON data, recorded in the candidate's origin)."""

    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """`known` points come first in their order; `sample` draws another from a seeded generator."""

    op: str
    known: tuple[Variant, ...]
    sample: Callable[[random.Random], Variant]


@functools.cache
def _template(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def render(variant: Variant) -> str:
    """The candidate's source. A tuning table is written one row a line."""
    values = dict(variant.values)
    if "tuning" in values:
        table = values["tuning"]
        values["columns"] = " ".join(table[0][2])
        values["tuning"] = "\n".join(f"    {_line(entry)}," for entry in table)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(_template(variant.template)).render(values)


def _line(entry: Sequence[Any]) -> str:
    tokens, megabytes, row = entry
    return repr((tokens, megabytes, *row.values())).replace("'", '"')


# moe_shared, tensor-core path. Axes of a row; what fits is decided by `fits` for the largest point it serves.
SPLITS = ((96, 1), (48, 2), (24, 4), (12, 8))  # (row groups, K splits): 96 CTAs each, clusters of at most 8
WARPS = ((8, 1), (7, 1), (4, 2), (2, 4), (4, 1))  # (along K, along rows)
DOWN = (("reg", "bulk", 2, 4), ("all", "bulk", 2, 4), ("all", "ring", 2, 4), ("all", "direct", 4, 2))
TOKEN_RANGES = (8, 16, 32, 64)
LIGHT, HEAVY = 20, 10**6  # MB of weights that a row serves at most
ONE_KERNEL_RESERVE = 112 * 1024  # bytes that the second stage of one kernel needs beside the first


def row(
    split: tuple[int, int], warps: tuple[int, int], w: int, x: str, down: tuple[str, str, int, int], pdl: bool = True,
    rows: int = 64,
) -> dict[str, Any]:  # fmt: skip
    """One row of a tuning table. `w`: K steps of gate_up weights in flight; `rows`: outputs of a down CTA."""
    down_w, down_x, down_warps_k, down_warps_r = down
    return {
        "groups": split[0], "ksplit": split[1], "warps_k": warps[0], "warps_r": warps[1], "w": w, "x": x,
        "x_stages": w, "rows": rows, "down_warps_k": down_warps_k, "down_warps_r": down_warps_r, "down_w": down_w,
        "down_x": down_x, "down_x_stages": 3, "pdl": pdl,
    }  # fmt: skip


def fits(row: Row, tokens: int, reserve: int = 2048) -> bool:
    """Whether gate_up's queues fit shared memory at the widest problem (96 pair groups of 8 rows, K of 7168).

    `reserve`: bytes that must stay free.
    """
    tiles_each = 96 // row["groups"] // row["warps_r"]
    if tiles_each < 1:
        return False
    threads = 32 * row["warps_k"] * row["warps_r"]
    token_tiles = (tokens + 7) // 8
    weights = threads * 32 * tiles_each * row["w"]
    ring = 512 * row["warps_k"] * token_tiles * row["x_stages"]
    bulk = tokens * 2 * (7168 // row["ksplit"] + 96)
    sums = 32 * (16 * (96 // row["groups"]) + 20) * token_tiles * row["warps_k"]  # they take the weights' place
    used = max(weights, sums) + (bulk if row["x"] == "bulk" else ring)
    accumulators = 4 * tiles_each * token_tiles
    return bool(used < SMEM_BYTES - reserve and accumulators <= 128)


def _sample_row(rng: random.Random, tokens: int, pdl: bool, one: bool) -> dict[str, Any]:
    while True:
        split, warps, down = rng.choice(SPLITS), rng.choice(WARPS), rng.choice(DOWN)
        x = rng.choice(("bulk", "ring")) if tokens <= 8 else "ring"
        if tokens > 16 and down[1] == "bulk":
            continue
        candidate = row(split, warps, rng.choice((4, 5, 6, 8, 10, 12, 14)), x, down, pdl, rng.choice((32, 64)))
        if one:  # the stages of one kernel share a CTA's shared memory: both stream
            candidate |= {"w": 3, "x": "ring", "x_stages": 3, "down_w": 3, "down_x": "ring"}
        if fits(candidate, tokens, reserve=ONE_KERNEL_RESERVE if one else 2048):
            return candidate


def _sample_moe_shared(rng: random.Random) -> Variant:
    kind = rng.choice(("two", "two", "two", "one", "fma"))
    pdl = rng.random() < 0.8
    if kind == "fma":
        values = {"warps": rng.choice((4, 8)), "rows": rng.choice((1, 2, 4)), "unroll": rng.choice((2, 4, 7))}
        return Variant("moe_shared_fma.py.tmpl", {**values, "pdl": pdl})
    table = [[tokens, HEAVY, _sample_row(rng, tokens, pdl, kind == "one")] for tokens in TOKEN_RANGES]
    return Variant("moe_shared.py.tmpl", {"tuning": table, "kernels": 1 if kind == "one" else 2})


def _sample_attn_res(rng: random.Random) -> Variant:
    values = {"threads": rng.choice((128, 224, 256, 448, 896)), "pdl": rng.random() < 0.7}
    return Variant("attn_res.py.tmpl", values)


# Good rows by (largest token count, largest weights in MB), chosen by graph time over cold weights on one H200. The
# sweep of this table is the evidence; the comparisons that led to it are not committed (runs/README.md). What they
# suggested: 96 CTAs leave room for down's CTAs to fetch their weights meanwhile; a queue beyond about 145 KB keeps
# those out and loses more than it hides; clusters of 8 do not all fit in one wave of its 132 SMs.
REG, DIRECT = ("reg", "bulk", 2, 4), ("all", "direct", 4, 2)
TUNED = [
    [2, LIGHT, row((24, 4), (8, 1), 8, "bulk", REG)],
    [16, LIGHT, row((24, 4), (8, 1), 8, "ring", REG)],
    [32, LIGHT, row((24, 4), (8, 1), 4, "ring", DIRECT)],
    [64, LIGHT, row((24, 4), (4, 2), 7, "ring", DIRECT)],
    [1, HEAVY, row((96, 1), (7, 1), 18, "bulk", REG)],
    [2, HEAVY, row((96, 1), (7, 1), 16, "bulk", REG)],
    [3, HEAVY, row((96, 1), (8, 1), 14, "bulk", REG)],
    [4, HEAVY, row((96, 1), (7, 1), 12, "bulk", REG)],
    [8, HEAVY, row((96, 1), (7, 1), 13, "ring", REG)],
    [16, HEAVY, row((96, 1), (8, 1), 9, "ring", REG)],
    [32, HEAVY, row((24, 4), (4, 2), 5, "ring", DIRECT)],
    [64, HEAVY, row((24, 4), (4, 2), 4, "ring", DIRECT)],
]

# out = x w^T: op -> the dims symbols of w's rows and of K. No point of these has been timed yet: the known ones are
# what the worked kernels of the guide suggest.
PROJECTIONS: Mapping[str, tuple[str, str]] = {
    "kda_in_proj": ("width", "hidden"),
    "mla_in_proj": ("width", "hidden"),
    "oproj_partial": ("hidden", "local"),
    "moe_latent_down": ("latent", "hidden"),
}
FMA, MMA = "projection_fma.py.tmpl", "projection_mma.py.tmpl"


def _sample_projection(rng: random.Random, sizes: Mapping[str, str]) -> Variant:
    pdl = rng.random() < 0.8
    if rng.random() < 0.6:
        values = {"warps": rng.choice((4, 7, 8, 14)), "unroll": rng.choice((1, 2, 4, 7)), "pdl": pdl}
        return Variant(MMA, {**sizes, **values, "blocks": rng.choice((66, 132, 264, 528))})
    values = {"warps": rng.choice((4, 8)), "slices": rng.choice((1, 2, 4, 7, 8)), "pdl": pdl}
    return Variant(FMA, {**sizes, **values, "rows": rng.choice((1, 2, 4)), "unroll": rng.choice((1, 2, 4))})


def _projection(op: str) -> Family:
    sizes = dict(zip(FIXED, PROJECTIONS[op], strict=True))
    known = (
        Variant(MMA, {**sizes, "warps": 8, "unroll": 4, "blocks": 132, "pdl": True}),
        Variant(FMA, {**sizes, "warps": 8, "slices": 4, "rows": 2, "unroll": 2, "pdl": True}),
    )
    return Family(op, known, functools.partial(_sample_projection, sizes=sizes))


FAMILIES: Mapping[str, Family] = {
    **{op: _projection(op) for op in PROJECTIONS},
    "moe_shared": Family(
        "moe_shared",
        known=(
            Variant("moe_shared.py.tmpl", {"tuning": TUNED, "kernels": 2}),
            Variant("moe_shared_fma.py.tmpl", {"warps": 8, "rows": 1, "unroll": 4, "pdl": True}),
        ),
        sample=_sample_moe_shared,
    ),
    "attn_res": Family(
        "attn_res",
        known=(Variant("attn_res.py.tmpl", {"threads": 448, "pdl": True}),),
        sample=_sample_attn_res,
    ),
}
