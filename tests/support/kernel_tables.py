"""Tables of measured points as Markdown: what the pages on promoted kernels hold, made from a kernel set's evidence.

Not here: where the tables stand (kernel_pages), what the evidence says (support.committed).
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.checkout import ROOT
from support.committed import SET, Timed, timed

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, FIXED, render
from kgen.proposers.families.gated import HEAVY
from kgen.records import Candidate, Origin, PerfPoint, Problem
from kgen.store.kernelset import parse_problem

RANKED = ROOT / "benchmarks" / "ranked.json"
NONE = "–"
SHOWN = (1, 8, 64)  # tokens of a summary
WIDTHS = "k3-tp8"  # dims of a summary
STOCK = "stock"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns whose head ends in a colon are aligned to the right."""
    names = [h.removesuffix(":") for h in heads]
    rules = ["---:" if h.endswith(":") else "---" for h in heads]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rules, *rows)) + "\n"


def us(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def gain(p: PerfPoint) -> str:
    return f"{1 / p.ratio:.2f}×"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def variant_axes(problem: Problem) -> dict[str, str]:
    """Axes that are not at their default."""
    known = REGISTRY.get(problem.op).axes
    return {name: value for name, value in problem.axes.items() if value != known[name][0]}


def groups(points: Iterable[Timed]) -> dict[str, list[Timed]]:
    """By architecture, dims and axes, in words."""
    found: dict[str, list[Timed]] = {}
    for each in points:
        axes = [f"{name}={value}" for name, value in sorted(variant_axes(each.problem).items())]
        found.setdefault(", ".join([each.problem.dims, *axes, each.problem.arch]), []).append(each)
    return found


def points_table(points: Sequence[Timed]) -> str:
    """All that was timed, in full: baselines, ratio, interval, floor, label of each point."""
    names = sorted({name for each in points for name in each.point.baselines_us}, key=lambda n: (n != STOCK, n))
    inputs = any(each.point.scenario for each in points)
    heads = ["tokens:", *(["inputs"] if inputs else []), "promoted µs:", *(f"{n} µs:" for n in names)]
    heads += ["best baseline / promoted:", "95 % interval of promoted / best", "floor µs:", "roofline:", "label"]
    rows = []
    for each in points:
        p = each.point
        row = [str(p.tokens), *([p.scenario or "typical"] if inputs else []), us(p.candidate_us)]
        row += [us(p.baselines_us.get(name)) for name in names]
        row += [f"{gain(p)} ({p.best_baseline})", f"{p.ratio_low:.3f}–{p.ratio_high:.3f}", us(p.floor_us)]
        rows.append([*row, percent(p.roofline), p.label])
    return table(heads, rows)


def plain_table(op: str, dims: str, root: Path = SET) -> str:
    """The served points of an op at dims with typical inputs, as runs/README.md has them."""
    heads = ("tokens:", "promoted µs:", "stock µs:", "best baseline / promoted:", "95 % interval of promoted / best")
    return table(
        (*heads, "roofline:"),
        (
            (
                str(p.tokens),
                us(p.candidate_us),
                us(p.baselines_us.get(STOCK)),
                f"{gain(p)} ({p.best_baseline})",
                f"{p.ratio_low:.3f}–{p.ratio_high:.3f}",
                percent(p.roofline),
            )
            for p in (e.point for e in timed(op, root) if e.problem.dims == dims and e.outcome != "left")
            if not p.scenario
        ),
    )


def bins_table(op: str, widths: Mapping[str, str], bins: Sequence[int], root: Path = SET) -> str:
    """promoted, stock and gain side by side for several dims. `widths`: how each is called -> its name."""
    known = {(e.problem.dims, e.point.tokens): e.point for e in timed(op, root) if not e.point.scenario}
    rows = []
    for tokens in bins:
        of = [known[dims, tokens] for dims in widths.values()]
        rows.append([str(tokens), *(c for p in of for c in (us(p.candidate_us), us(p.baselines_us[STOCK]), gain(p)))])
    return table(["tokens:", *(h for name in widths for h in (f"{name}: promoted:", "stock:", "gain:"))], rows)


def outcomes(points: Iterable[Timed]) -> dict[str, list[Problem]]:
    """The bins by what became of them."""
    found: dict[str, dict[str, Problem]] = {"win": {}, "tie": {}, "left": {}}
    for each in points:
        found[each.outcome][each.problem.key] = each.problem
    return {outcome: list(made.values()) for outcome, made in found.items()}


def summary_table(ops: Sequence[str], root: Path = SET) -> str:
    """A row an op at WIDTHS and typical inputs, default axes or else those named; the counts are of all points."""
    heads = ["op", "win / tie / left", *(h for n in SHOWN for h in (f"{n}: µs:", "gain:")), "roofline at 1 / 8 / 64:"]
    rows = []
    for op in ops:
        points = timed(op, root)
        axes = _axes_shown(points)
        counts = " / ".join(str(len(bins)) for bins in outcomes(points).values())
        cells: list[str] = []
        shares: list[str] = []
        for tokens in SHOWN:
            p = _summarised(points, tokens, axes)
            cells += [us(p.candidate_us), gain(p)] if p else [NONE, NONE]
            shares.append(percent(p.roofline) if p else NONE)
        named = "".join(f", {name}={value}" for name, value in sorted(axes.items()))
        rows.append([f"[{op}](docs/kernels/{op}.md){named}", counts, *cells, " / ".join(shares)])
    return table(heads, rows)


def _axes_shown(points: Sequence[Timed]) -> dict[str, str]:
    """None where there are points with all axes at their defaults, else the axes of the first point."""
    found = [variant_axes(each.problem) for each in points]
    return found[0] if found and all(found) else {}


def _summarised(points: Iterable[Timed], tokens: int, axes: dict[str, str]) -> PerfPoint | None:
    for each in points:
        plain = each.problem.dims == WIDTHS and variant_axes(each.problem) == axes and not each.point.scenario
        if plain and each.problem.tokens == each.point.tokens == tokens and each.outcome != "left":
            return each.point
    return None


@functools.cache
def known_points(op: str) -> tuple[str, ...]:
    """Ids of the family's known points as they are rendered now, in the order in which `search` proposes them."""
    return tuple(Candidate(op, render(v), Origin("search")).id for v in FAMILIES[op].known)


def ranked_runs(op: str) -> list[dict[str, Any]]:
    runs = json.loads(RANKED.read_text(encoding="utf-8"))["runs"]
    return [run for run in runs if run["op"] == op]


def ranked_table(run: Mapping[str, Any]) -> str:
    """A row a candidate of one ranking, by its time at the first count, then the stock op, µs at each count."""
    counts = sorted({parse_problem(r["point"]).tokens for r in run["rows"]})
    cells = {(r["candidate"], parse_problem(r["point"]).tokens): r for r in run["rows"]}
    heads = ["candidate", "values", *(f"{n} token{'s' if n > 1 else ''}:" for n in counts)]
    names = _differing([made["values"] for made in run["candidates"].values()])
    rows = []
    for candidate, made in run["candidates"].items():
        times = [_time(cells.get((candidate, n))) for n in counts]
        rows.append([f"`{candidate}`", _values(made, names), *times])
    stock = {parse_problem(r["point"]).tokens: r["stock_us"] for r in run["rows"] if r["status"] == "ok"}
    rows.append(["stock, not compiled", "", *(us(stock.get(n)) for n in counts)])
    failed = sorted({f"{r['status']}: {r['message']}" for r in run["rows"] if r["status"] != "ok"})
    return table(heads, rows) + "".join(f"\n{line}.\n" for line in failed)


def _time(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return NONE
    return us(row["us"]) if row["status"] == "ok" else str(row["status"])


def _differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the values that tell the points of a ranking apart."""
    names = sorted({name for each in values for name in each} - set(FIXED))
    return [n for n in names if any(each.get(n) != values[0].get(n) for each in values)]


def _values(made: Mapping[str, Any], names: Sequence[str]) -> str:
    said = [f"{name} {_word(made['values'][name])}" for name in names if name in made["values"]]
    return ", ".join([made["template"].partition(".")[0], *said])


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "; ".join(_tuned(*entry) for entry in value) if isinstance(value, list) else str(value)


def _tuned(tokens: int, megabytes: int, row: Mapping[str, Any]) -> str:
    """A row of a tuning table of the gate, up, down template, in short."""
    upto = f"{tokens} tokens" + (f" of {megabytes} MB" if megabytes < HEAVY else "")
    split = f"{row['groups']}x{row['ksplit']} CTAs of {row['warps_k']}x{row['warps_r']} warps"
    return f"to {upto}: {split}, queue {row['w']}, down {row['rows']} rows, queue {row['down_w']}"
