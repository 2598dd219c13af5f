"""The pictures of a report: numeric errors by kind of input, and every timed point under the memory roof.

    errors(rows) -> tuple[Picture, ...]       one for each dims and output
    roofline(op, points) -> Picture | None    None without points, or for an op that this kgen does not have

Not covered: the heat map, which is a table (`heat`).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from kgen.contract.op import Op
from kgen.records import PerfPoint
from kgen.records.envelope import HEADLINE
from kgen.report.plain import percent, sci, us
from kgen.report.svg import Axis, Drawing, log_axis, shown
from kgen.store.kernelset import parse_problem

WIDTH = 400
LABELS = 104  # units for the names at the left
LINE = 18
SHARES = (
    ("candidate_true", "allowed_true", "circle", "mine"),
    ("candidate_rounded", "allowed_rounded", "square", "mine2"),
)
STOCK = (("stock_true", "allowed_true", "circle", "hollow"), ("stock_rounded", "allowed_rounded", "square", "hollow"))
SHAPES = {"win": "circle", "tie": "square", "left": "cross"}


@dataclass(frozen=True)
class Picture:
    """`key`: (shape, class, words) of each kind of mark."""

    name: str
    title: str
    svg: Markup
    key: tuple[tuple[Markup, str], ...]


def sample(shape: str, cls: str) -> Markup:
    """A mark for the key beside a picture; `roof` is a line."""
    d = Drawing(12, 12, "", "")
    if shape == "roof":
        d.line(0, 9, 12, 3, cls)
    else:
        d.mark(shape, 6, 6, cls)
    return Markup('<svg viewBox="0 0 12 12" aria-hidden="true">') + Markup("").join(d.parts) + Markup("</svg>")


ERROR_KEY = (
    (sample("circle", "mine"), "candidate to true float64"),
    (sample("square", "mine2"), "candidate to rounded float64"),
    (sample("circle", "hollow"), "stock, the same two"),
)
ROOF_KEY = (
    (sample("circle", "win"), "win"),
    (sample("square", "tie"), "tie"),
    (sample("cross", "left"), "left"),
    (sample("diamond", "hollow"), "best baseline"),
)


def errors(rows: Sequence[Mapping[str, Any]]) -> tuple[Picture, ...]:
    """Each distance as a share of what is allowed: a line of marks for each kind of input, all points on it."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((str(row["problem"]).split("/")[1], str(row.get("output", ""))), []).append(row)
    return tuple(
        _errors(f"errors-{number}", f"{output} at {dims}", group)
        for number, ((dims, output), group) in enumerate(groups.items(), 1)
        if any(_share(row, *pair[:2]) is not None for row in group for pair in SHARES)
    )


def _share(row: Mapping[str, Any], name: str, allowed: str) -> float | None:
    found, limit = row.get(name), row.get(allowed)
    if not isinstance(found, int | float) or not isinstance(limit, int | float) or not limit > 0:
        return None
    return float(found) / float(limit) if found == found else None


def _errors(name: str, title: str, rows: Sequence[Mapping[str, Any]]) -> Picture:
    kinds = list(dict.fromkeys(str(row["what"]) for row in rows))
    shares = [s for row in rows for pair in SHARES if (s := _share(row, *pair[:2])) is not None]
    most = max(shares)
    height = 30 + LINE * len(kinds) + 30
    far = most > 1.25  # then a logarithm shows how far
    axis = Axis(0.01, max(10.0, most * 1.2), LABELS, WIDTH - 14, True) if far else Axis(0, 1.25, LABELS, WIDTH - 14)
    said = f"At most {percent(most)} of what is allowed, over {len(rows)} comparisons of {len(kinds)} kinds of input."
    d = Drawing(WIDTH, height, f"Numeric errors of {title}", said)
    bottom = height - 30
    for tick in axis.ticks() if far else (0, 0.25, 0.5, 0.75, 1.0):
        d.line(axis.at(tick), 22, axis.at(tick), bottom, "limit" if tick == 1 else "grid")
        d.text(axis.at(tick), bottom + 13, percent(tick), "middle")
    d.text(axis.at(1), 14, "allowed", "middle")
    d.text((LABELS + WIDTH) / 2, height - 3, "share of the allowed distance", "middle")
    for at, kind in enumerate(kinds):
        y = 30 + LINE * at + 6
        d.text(LABELS - 8, y + 4, kind if len(kind) < 17 else kind[:15] + "…", "end", "name")
        d.line(LABELS, y, WIDTH - 14, y)
        mine = [row for row in rows if row["what"] == kind]
        for pair in (*STOCK, *SHARES):
            for row in mine:
                share = _share(row, *pair[:2])
                if share is not None:
                    where = "/".join(str(row["problem"]).split("/")[2:])
                    what = f"{pair[0].replace('_', ' to ')} {sci(row[pair[0]])}, allowed {sci(row[pair[1]])}"
                    tip = f"{kind}, {where}: {what}"
                    d.mark(pair[2], axis.at(share), y, pair[3], tip, 3 if pair[3] == "hollow" else 2.4)
    return Picture(name, title, d.markup(name), ERROR_KEY)


@dataclass(frozen=True)
class _Spot:
    """A point under the roof: FLOP/byte, and TB/s of the bytes that have to move."""

    point: PerfPoint
    intensity: float
    bytes: float  # of typical inputs
    mine: float = 0.0
    best: float = 0.0


def roofline(op: Op | None, points: Sequence[PerfPoint]) -> Picture | None:
    """Every point of the headline column. Points of a scenario are drawn at the intensity of typical inputs."""
    found = [s for p in points if op and p.column == HEADLINE and (s := _spot(op, p)) is not None]
    rates = [s.bytes / s.point.floor_us / 1e6 for s in found if not s.point.scenario]
    if not rates:
        return None
    rate = statistics.median(rates)  # TB/s of a plain read, as the gate took it
    spots = [
        replace(
            s, mine=rate * s.point.floor_us / s.point.candidate_us, best=rate * s.point.floor_us / _best_us(s.point)
        )
        for s in found
    ]
    roof = (sample("roof", "roof"), f"roof: plain read, {rate:.2f} TB/s")
    return Picture("roofline", "Roofline", _roofline(spots, rate), (roof, *ROOF_KEY))


def _roofline(spots: Sequence[_Spot], rate: float) -> Markup:
    height, bottom = 300, 262
    x = log_axis([s.intensity for s in spots], 40, WIDTH - 12)
    y = log_axis([v * s.intensity for s in spots for v in (s.mine, s.best, rate)], bottom, 22)
    best, worst = (pick(s.point.roofline for s in spots) for pick in (max, min))
    said = f"{len(spots)} points. The nearest to the roof reaches {percent(best)} of it, the farthest {percent(worst)}."
    d = Drawing(WIDTH, height, "Roofline", said)
    for tick in x.ticks():
        d.line(x.at(tick), 22, x.at(tick), bottom)
        d.text(x.at(tick), bottom + 14, shown(tick), "middle")
    for tick in y.ticks():
        d.line(40, y.at(tick), WIDTH - 12, y.at(tick))
        d.text(36, y.at(tick) + 4, shown(tick), "end")
    low, high = max(x.low, y.low / rate), min(x.high, y.high / rate)
    d.line(x.at(low), y.at(rate * low), x.at(high), y.at(rate * high), "roof")
    d.text((40 + WIDTH) / 2, height - 8, "FLOP per byte", "middle")
    d.text(4, 12, "TFLOP/s")
    for s in spots:
        tip = _tip(s.point, s.point.best_baseline, _best_us(s.point))
        d.mark("diamond", x.at(s.intensity), y.at(s.best * s.intensity), "hollow", tip, 2.4)
    for s in spots:
        tip = _tip(s.point, "candidate", s.point.candidate_us)
        d.mark(SHAPES[s.point.label], x.at(s.intensity), y.at(s.mine * s.intensity), s.point.label, tip, 3)
    return d.markup("roofline")


def _best_us(p: PerfPoint) -> float:
    return p.baselines_us[p.best_baseline]


def _tip(p: PerfPoint, who: str, time: float) -> str:
    where = "/".join(p.problem.split("/")[1:]) + (f" {p.scenario}" if p.scenario else "")
    return f"{where}, {p.tokens} tokens, {who}: {us(time)} µs, {percent(p.floor_us / time)} of the roof"


def _spot(op: Op, p: PerfPoint) -> _Spot | None:
    """None for a point without a floor, or whose problem the op does not have any more."""
    problem = parse_problem(p.problem)
    true = replace(problem, tokens=p.tokens)
    if problem.op != op.name or problem.dims not in op.names() or p.label not in SHAPES:
        return None
    cost = op.cost(problem if op.refuses(true) else true)
    if not min(cost.flops, cost.bytes, p.floor_us, p.candidate_us, p.baselines_us.get(p.best_baseline, 0.0)) > 0:
        return None
    return _Spot(p, cost.flops / cost.bytes, cost.bytes)


def gains_picture(spans: Sequence[tuple[str, float, float]]) -> Picture | None:
    """A line from the least to the greatest gain of each (name, least, greatest); None for fewer than two of them."""
    if len(spans) < 2:
        return None
    height, end = 30 + LINE * len(spans) + 30, WIDTH - 14
    bottom, most = height - 30, max(high for _, _, high in spans)
    axis = Axis(0.0, max(1.25, most * 1.1), LABELS, end)
    d = Drawing(WIDTH, height, "Gains by promotion", f"{len(spans)} promotions; the greatest gain is {most:.2f}.")
    step = 0.5 if most < 4 else 5.0 if most > 20 else 1.0
    for number in range(int(axis.high / step) + 1):
        tick = number * step
        d.line(axis.at(tick), 22, axis.at(tick), bottom, "limit" if tick == 1 else "grid")
        d.text(axis.at(tick), bottom + 13, f"{tick:g}×", "middle")
    d.text((LABELS + end) / 2, height - 3, "gain over the best baseline", "middle")
    for at, (name, low, high) in enumerate(spans):
        y = 36 + LINE * at
        d.text(LABELS - 8, y + 4, name, "end", "name")
        d.line(axis.at(low), y, axis.at(high), y, "span")
        for value in (low, high):
            d.mark("circle", axis.at(value), y, "mine", f"{name}: {value:.2f}×")
    return Picture("gains", "Gains", d.markup("gains"), ())
