"""The heat map of a perf sweep: tokens by dims, each cell the ratio to the best baseline with its interval.

    maps(points) -> tuple[HeatMap, ...]     one for each column that was timed, the deciding one first

A table, not a picture: every number can be read, copied and heard. Scenarios and other axes are columns of their own.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kgen.records import PerfPoint
from kgen.records.envelope import HEADLINE
from kgen.report.plain import percent, us
from kgen.store.kernelset import parse_problem

STEPS = ((0.6, "h1"), (0.75, "h2"), (0.9, "h3"), (1.0, "h4"), (1.03, "h5"))  # upper bound of the interval -> class
WORST = "h6"


@dataclass(frozen=True)
class Square:
    ratio: str
    interval: str
    time: str
    roofline: str
    label: str
    shade: str  # class of its colour


@dataclass(frozen=True)
class HeatMap:
    """`rows`: (tokens, a square for each of `columns`); several points of one square: the worst of them.

    `shared`: the axes that all columns have, said once.
    """

    name: str
    timer: str
    shared: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Square | None, ...]], ...]


def maps(points: Iterable[PerfPoint]) -> tuple[HeatMap, ...]:
    by_column: dict[str, list[PerfPoint]] = {}
    for p in points:
        by_column.setdefault(p.column, []).append(p)
    ordered = sorted(by_column, key=lambda name: name != HEADLINE)
    return tuple(_map(name, by_column[name]) for name in ordered)


def _map(name: str, points: list[PerfPoint]) -> HeatMap:
    worst: dict[tuple[int, str], PerfPoint] = {}
    axes = [dict(parse_problem(p.problem).axes).items() for p in points]
    shared = sorted(pair for pair in axes[0] if all(pair in other for other in axes))
    for p in points:
        key = (p.tokens, _column(p, shared))
        if key not in worst or p.ratio_high > worst[key].ratio_high:
            worst[key] = p
    columns = tuple(dict.fromkeys(_column(p, shared) for p in points))
    rows = tuple(
        (tokens, tuple(_square(worst.get((tokens, column))) for column in columns))
        for tokens in sorted({p.tokens for p in points})
    )
    return HeatMap(name, points[0].timer, ", ".join(f"{k}={v}" for k, v in shared), columns, rows)


def _column(p: PerfPoint, shared: Collection[tuple[str, str]]) -> str:
    problem = parse_problem(p.problem)
    own = [f"{k}={v}" for k, v in sorted(problem.axes.items()) if (k, v) not in shared]
    words = [problem.dims, *own, p.scenario]
    return " ".join(word for word in words if word)


def _square(p: PerfPoint | None) -> Square | None:
    if p is None:
        return None
    return Square(
        ratio=f"{p.ratio:.3f}",
        interval=f"{p.ratio_low:.3f}–{p.ratio_high:.3f}",
        time=f"{us(p.candidate_us)} µs",
        roofline=percent(p.roofline),
        label=p.label,
        shade=shade(p.ratio_high),
    )


def shade(ratio: float) -> str:
    """The class of a ratio's colour: from much faster to slower."""
    return next((name for limit, name in STEPS if ratio <= limit), WORST)
