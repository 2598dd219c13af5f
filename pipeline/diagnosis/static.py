"""The static cost in words: what it is made of, and what lowers it. It is a guess from builds, never a time.

    lines(cost)    of a quick tier's evidence `cost` (kgen.loop.cost): a line a problem, then what lowers it most

Not covered: the formula itself, and how candidates stand to one another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.diagnosis.words import cell

IN_FLIGHT = 27  # kB an SM that the cost wants (kgen.loop.cost)
WORTH = 0.05  # of the sum: smaller terms are no place to begin
SMALL = (
    "At so small a size this is no time, nor a guess of it: there is hardly a block for the SMs that it counts with, so"
    " work that is split ever finer lowers it, which no clock would confirm. It orders the candidates of one run."
)


@dataclass(frozen=True)
class Term:
    """`key` in the evidence; `name` in a sum; `remedy`: what lowers it."""

    key: str
    name: str
    remedy: str


TERMS = (
    Term("launch_us", "launches", "fewer launches, and PDL on those that follow another one (1 instead of 2 µs)"),
    Term("bytes_us", "bytes once at a plain read's rate", "fewer bytes: no workspace that is written and read again"),
    Term(
        "thin_us",
        "too few bytes in flight",
        f"more bytes in flight an SM, up to {IN_FLIGHT} kB: more blocks or threads, 16-byte loads, more of them before"
        " the first use, or asynchronous copies into more shared memory",
    ),
    Term(
        "uneven_us",
        "SMs without a block or waiting for the last one",
        "as many blocks as SMs (132, 148), or a little below a multiple of them",
    ),
    Term("spill_us", "spills", "no local memory: fewer live values, constant indices"),
)


def lines(cost: Any) -> list[str]:
    """Empty where the evidence has no terms (an older kgen's)."""
    launches = list(_launches(cost))
    if not launches:
        return []
    keys = dict.fromkeys(str(x["problem"]) for x in launches)
    told = [_problem(key, [x for x in launches if x["problem"] == key]) for key in keys]
    sums = {term: sum(_number(x, term.key) for x in launches) for term in TERMS}
    most = sorted((t for t in TERMS if sums[t] > WORTH * sum(sums.values())), key=lambda t: -sums[t])
    told += [f"What lowers it, largest term first: {'; '.join(t.remedy for t in most)}."] if most else []
    return [*told, *([SMALL] if all(x.get("small") for x in launches) else [])]


def _problem(key: str, launches: Sequence[Mapping[str, Any]]) -> str:
    """e.g. `op/nano/t1/sm_90a: 3.00 µs = 2.00 launches (1) + 1.00 bytes ...`; terms of nothing are left out."""
    parts = []
    for term in TERMS:
        if (us := sum(_number(x, term.key) for x in launches)) >= 0.005:
            parts.append(f"{us:.2f} {term.name} ({_how(term, [x for x in launches if _number(x, term.key) > 0])})")
    return f"{cell(key)}: {sum(_number(x, 'us') for x in launches):.2f} µs = {' + '.join(parts)}"


def _how(term: Term, launches: Sequence[Mapping[str, Any]]) -> str:
    """The number behind a term, of the launches that have some of it."""
    if term.key == "bytes_us":
        return f"{sum(_number(x, 'bytes') for x in launches) / 1e6:.3g} MB"
    if term.key == "thin_us":
        return f"{min(_number(x, 'in_flight') for x in launches) / 1e3:.3g} of {IN_FLIGHT} kB an SM"
    if term.key == "uneven_us":
        return f"{' and '.join(str(x.get('blocks', 0)) for x in launches)} blocks"
    if term.key == "spill_us":
        return f"{max(_number(x, 'stack_bytes') for x in launches):.0f} B a thread"
    return str(len(launches))


def _launches(cost: Any) -> Iterator[Mapping[str, Any]]:
    listed = cost.get("launches") if isinstance(cost, Mapping) else None
    for x in listed if isinstance(listed, list | tuple) else ():
        if isinstance(x, Mapping) and x.get("problem"):
            yield x


def _number(launch: Mapping[str, Any], key: str) -> float:
    value = launch.get(key, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
