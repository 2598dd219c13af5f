"""The record of layers as a page: one table a setting and layer, where the time goes, what each technique is worth."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.gates.layer.columns import (
    CHAIN,
    COMPILED,
    NO_FUSION,
    NO_OVERLAP,
    NO_PREFETCH,
    NO_PROMOTED,
    PREFETCH,
    UNFUSED,
    WITHOUT,
)
from kgen.gates.layer.points import ANY_CONTEXT, Point
from kgen.gates.layer.record import LayerRecord, Measured, Side
from kgen.gates.routing import SYNTHETIC
from kgen.model.decoder.swap import PROMOTED
from kgen.records import one_line

Stock = Mapping[str, Any]  # a committed measurement of another engine: see `stock_us`
NOTHING = "-"
SHOWN_KERNEL = 50  # characters of a kernel's name
BARS = 60  # characters of a timeline


def markdown(record: LayerRecord, stock: Stock | None = None, pictures: Mapping[str, str] | None = None) -> str:
    """`stock`: figures of another engine in one of the settings, shown beside the points that they fit. `pictures`:
    point -> file beside the page."""
    lines = [f"# Decode layers: {_routings(record)}", "", *_head(record, stock)]
    for setting, kind in dict.fromkeys((m.job.point.setting, m.job.point.kind) for m in record.points):
        chosen = [m for m in record.points if (m.job.point.setting, m.job.point.kind) == (setting, kind)]
        chosen.sort(key=lambda m: (m.job.point.context, m.job.point.tokens))
        lines += ["", f"## {setting}, {kind}", "", *_times(chosen, stock), "", *_switches(chosen), "", *_parts(chosen)]
        lines += _timeline(next((m for m in chosen if m.timeline), None))
        shown = [m.job.point.key for m in chosen if m.job.point.key in (pictures or {})]
        lines += [line for key in shown for line in ("", f"![{key}: one replay]({(pictures or {})[key]})")]
    if record.refused:
        lines += ["", "## Not timed", "", *(f"- `{key}`: {why}" for key, why in sorted(record.refused.items()))]
    return "\n".join(lines) + "\n"


def _routings(record: LayerRecord) -> str:
    """What all points have: synthetic routing, the traces that some were measured with, or both."""
    jobs = [m.job for m in record.points]
    drawn = [SYNTHETIC] if not jobs or any(not j.trace for j in jobs) else []
    return ", ".join([*drawn, *dict.fromkeys(f"routing {j.routing}" for j in jobs if j.trace)])


def _head(record: LayerRecord, stock: Stock | None) -> list[str]:
    if not record.points:
        return ["Nothing is measured yet."]
    said = [*(_measured_how(m, "some points" if n else "") for n, m in enumerate(_ways(record.points)))]
    said += [
        "",
        "`unfused`: every op's stock; `compiled`: with torch.compile; `chain`: the set's kernels in their seats, the"
        " shared expert on a side stream, and the best stock there is where no kernel is promoted.",
    ]
    if stock is not None:
        said += ["", f"`{stock['engine']}`: {stock['source']}"]
    for name, why in sorted({(n, w) for m in record.points for n, w in m.left_out.items()}):
        said += ["", f"`{name}` is left out: {why}."]
    return said


def _ways(points: Sequence[Measured]) -> list[Measured]:
    """One point of each machine, rate, timer and routing."""
    found = {_measured_how(m, ""): m for m in reversed(points)}
    return list(reversed(found.values()))


def _measured_how(found: Measured, which: str) -> str:
    where = found.environment
    rate = f"floors at {found.read_rate / 1e12:.2f} TB/s, " if found.read_rate else "no floor is known here, "
    return (
        f"{f'And {which}' if which else 'Measured'} on {where.gpu} (driver {where.driver}, CUDA {where.cuda}, torch"
        f" {where.torch}); {rate}medians with 95 % intervals, µs a layer, {found.timer}. Routing: {found.job.routing}."
    )


def read_stock(path: Path) -> dict[str, Any]:
    """Raises ValueError (one line) for what holds no such figures."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(str(error))}") from None
    wanted = {"engine": str, "source": str, "setting": str, "context": int, "layers": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in wanted.items()):
        raise ValueError(f"{path} holds no figures of an engine: {', '.join(wanted)} are needed")
    return found


def stock_us(stock: Stock | None, point: Point) -> float | None:
    """The other engine's figure for a point; None where it has none: other widths, other tokens, a longer context."""
    if stock is None or stock["setting"] != point.setting or point.context > stock["context"]:
        return None
    found = stock["layers"].get(point.kind, {}).get(str(point.tokens))
    return None if found is None else float(found["us"])


def _times(chosen: Sequence[Measured], stock: Stock | None) -> list[str]:
    names = [n for n in (UNFUSED, COMPILED, CHAIN) if any(m.side(n) for m in chosen)]
    engine = [str(stock["engine"])] if stock and any(stock_us(stock, m.job.point) for m in chosen) else []
    head = ["tokens", "context", *names, *engine, "chain over best", "floor", "of the floor", "launches", "experts"]
    return _table(head, [_time_row(m, names, stock if engine else None, bool(engine)) for m in chosen])


def _time_row(m: Measured, names: Sequence[str], stock: Stock | None, engine: bool) -> list[str]:
    point, whole = m.job.point, m.side(CHAIN)
    theirs = stock_us(stock, point)
    others = [s.us for n in (UNFUSED, COMPILED) if (s := m.side(n))] + ([theirs] if theirs else [])
    ratio = f"{whole.us / min(others):.3f}" if whole and others else NOTHING
    reached = f"{m.floor_us / whole.us:.0%}" if whole and m.floor_us else NOTHING
    return [
        str(point.tokens),
        "any" if point.context == ANY_CONTEXT else str(point.context),
        *(_us(m.side(n)) for n in names),
        *([f"{theirs:.1f}" if theirs else NOTHING] if engine else []),
        ratio,
        f"{m.floor_us:.1f}" if m.floor_us else NOTHING,
        reached,
        " / ".join(_launches(m.side(n)) for n in names),
        f"{m.experts:.1f}",
    ]


def _launches(side: Side | None) -> str:
    return str(side.launches) if side and side.launches >= 0 else NOTHING


def _us(side: Side | None) -> str:
    return f"{side.us:.1f} ({side.low:.1f} to {side.high:.1f})" if side else NOTHING


SAID = {
    NO_OVERLAP: "all ops on one stream",
    NO_PREFETCH: "without prefetch into L2",
    NO_FUSION: "projection and residual mix apart",
    NO_PROMOTED: "stock in all seats",
}


def _switches(chosen: Sequence[Measured]) -> list[str]:
    names = list(dict.fromkeys(s.name for m in chosen for s in m.switches))
    if not names:
        return []
    rows = []
    for m in chosen:
        found = {s.name: s for s in m.switches}
        cells = [f"{s.us:+.1f} ({s.ratio:.3f}: {s.low:.3f} to {s.high:.3f})" if (s := found.get(n)) else NOTHING
                 for n in names]  # fmt: skip
        rows.append([str(m.job.point.tokens), str(m.job.point.context), *cells])
    head = (
        "What the chain takes longer with one thing changed, µs (ratio, interval); less than 1: that would be faster:"
    )
    return [head, "", *_table(["tokens", "context", *map(_said, names)], rows), *_paying(chosen)]


def _paying(chosen: Sequence[Measured]) -> list[str]:
    """Where a schedule of weights pulled into L2 is worth switching on: its chain is faster, interval and all."""
    found: dict[str, list[str]] = {}
    for m in chosen:
        where = f"t{m.job.point.tokens} c{m.job.point.context}"
        for s in m.switches:
            if s.name == NO_PREFETCH:
                name, pays = m.job.prefetch[0], s.low > 1
            elif s.name.startswith(PREFETCH):
                name, pays = s.name.removeprefix(PREFETCH), s.high < 1
            else:
                continue
            found.setdefault(name, []).extend([where] if pays else [])
    words = [f"`{name}` at {', '.join(points) or 'no point'}" for name, points in found.items()]
    return ["", f"A prefetch pays, by its whole interval: {'; '.join(words)}."] if words else []


def _said(name: str) -> str:
    if name.startswith(PREFETCH):
        return f"with prefetch `{name.removeprefix(PREFETCH)}`"
    return SAID.get(name, f"without the kernel of {name.removeprefix(WITHOUT)}")


def _parts(chosen: Sequence[Measured]) -> list[str]:
    """Where the time goes: the chain on one stream, by op."""
    seats = list(dict.fromkeys(p.seat for m in chosen for p in m.parts))
    heads = [f"t{m.job.point.tokens} c{m.job.point.context}" for m in chosen]
    rows = []
    for seat in seats:
        cells, op = [], ""
        who: dict[str, None] = {}  # as a set that keeps order: a kernel may serve some token counts only
        for m in chosen:
            part = next((p for p in m.parts if p.seat == seat), None)
            total = sum(p.us for p in m.parts)
            cells.append(f"{part.us:.1f} ({part.us / total:.0%})" if part and total else NOTHING)
            if part:
                op = part.op
                who[part.candidate[:12] if part.path == PROMOTED else "stock"] = None
        rows.append([seat.split(".", 2)[2], op, ", ".join(who), *cells])
    missing = [_unserved(op, chosen) for op in sorted({p.op for m in chosen for p in m.parts if p.path != PROMOTED})]
    tail = ["", f"No kernel is promoted for: {', '.join(missing)}."] if missing else []
    return [
        "Where the time goes on one stream, µs (share):",
        "",
        *_table(["seat", "op", "kernel", *heads], rows),
        *tail,
    ]


def _unserved(op: str, chosen: Sequence[Measured]) -> str:
    """The op, with the points at which it ran stock where that is not all of them."""
    stock = [m for m in chosen if any(p.op == op and p.path != PROMOTED for p in m.parts)]
    if len(stock) == len(chosen):
        return op
    return f"{op} (at {', '.join(f't{m.job.point.tokens} c{m.job.point.context}' for m in stock)})"


def _timeline(m: Measured | None) -> list[str]:
    """The kernels of the first point that has them: one line each, its bar where it ran."""
    if m is None:
        return []
    end = max(k.start + k.us for k in m.timeline)
    lines = []
    for k in m.timeline:
        first = min(BARS - 1, int(k.start / end * BARS))
        bar = "#" * max(1, round(k.us / end * BARS))
        place = f"{'.' * first}{bar}"[:BARS]
        lines.append(f"{k.start:7.1f} {k.us:7.2f}  {k.stream:>3} |{place:.<{BARS}}| {k.name[:SHOWN_KERNEL]}")
    head = f"{'start':>7} {'µs':>7}  str |{f'0 to {end:.1f} µs':^{BARS}}|"
    return ["", f"One replay of `{m.job.point.key}`, {len(m.timeline)} launches:", "", "```text", head, *lines, "```"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
