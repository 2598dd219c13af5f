"""The tables of a report that judge one candidate, as plain text: gates, numbers, the model, times.

Each is of an `Entry` and empty where there is nothing to say. Not covered: the words around them, how they are written.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kgen.contract.op import Op
from kgen.gates import routing
from kgen.gates.kit_results import TOGETHER
from kgen.gates.kit_units import GATE_NAMES
from kgen.records import GATES, GateResult, PerfPoint
from kgen.report.document import Document, Entry
from kgen.report.plain import Code, Figure, Mark, Table, percent, sci, us

NUMERIC, MODEL, PERF = GATE_NAMES["numeric"], GATE_NAMES["model"], GATE_NAMES["perf"]
KEPT = "its result stays with the run; what was built and audited stands below"
Row = Mapping[str, Any]


def gates(entry: Entry, missing: str = "not run") -> Table:
    """`missing`: what is said of a gate without a result."""
    rows: list[tuple[str, ...]] = []
    for gate in GATES:
        result = entry.result(gate)
        if result is None:
            rows.append((gate, "–", "", missing, ""))
            continue
        mark = Mark(f"{result.status}{' (interpreted)' if result.interpreted else ''}")
        rows.append((gate, mark, Code(result.code), result.message, f"{result.seconds:.1f}"))
    return Table(("gate", "status", "code", "what it found", "s"), tuple(rows), (4,))


def routing_of(op: Op | None, results: Iterable[GateResult]) -> str:
    """Where the experts came from that an op was timed with, "" for an op that has none."""
    if op is None or not routing.routes(op):
        return ""
    named = [r.evidence.get("routing") for r in results if r.gate == PERF]
    found = [f for each in named if isinstance(each, list) for f in each]
    sound = [f for f in found if isinstance(f, Mapping) and routing.is_facts(f)]
    return f"{routing.SYNTHETIC}, and {routing.said(sound)}" if sound else routing.SYNTHETIC


def routing_in(doc: Document) -> str:
    """The same of a report's candidate; of a run without one, what would have been timed."""
    return routing_of(doc.op, doc.subject.results if doc.subject else ())


def numeric_rows(entry: Entry) -> list[Row]:
    """What unit-numeric compared: one for each point, kind of input and output."""
    result = entry.result(NUMERIC)
    found = result.evidence.get("table", ()) if result else ()
    return [r for r in found if isinstance(r, Mapping) and {"problem", "what"} <= set(r)]


def worst_rows(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """By (dims, output): the row that uses most of what is allowed."""
    worst: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (str(row["problem"]).split("/")[1], str(row.get("output", "")))
        if key not in worst or float(row.get("strain", 0)) > float(worst[key].get("strain", 0)):
            worst[key] = row
    return worst


def numbers(rows: Iterable[Row]) -> Table:
    """The most strained row of each dims and output, and where it is."""
    head = ("dims", "output", "worst at", "true: cand.", "stock", "rounded", "allowed")
    body = []
    for (dims, output), row in worst_rows(rows).items():
        where = f"{row['what']}, {'/'.join(str(row['problem']).split('/')[2:])}"
        errors = [sci(row.get(k)) for k in ("candidate_true", "stock_true", "rounded_true", "allowed_true")]
        errors += [sci(row.get(k)) for k in ("candidate_rounded", "stock_rounded", "allowed_rounded")]
        exact = percent(row["bit_exact"]) if isinstance(row.get("bit_exact"), int | float) else "exact"
        body.append((dims, output, where, *errors, exact))
    return Table((*head, "rounded: cand.", "stock", "allowed", "bit-exact"), tuple(body), tuple(range(3, 11)))


def models(entry: Entry) -> Mapping[str, Any]:
    """What full-model-eval found, by model; empty where it has not run."""
    result = entry.result(MODEL)
    return result.evidence.get("models", {}) if result else {}


def distances(found: Mapping[str, Any]) -> Table:
    rows = []
    for name, numbers in found.items():
        for mode, pooled in numbers.get("rows", {}).get("modes", {}).items():
            ratios = [_ratio(pooled.get(k)) for k in ("logits", "hidden", "kl")]
            agree = pooled.get("agreement", {})
            right = f"{agree.get('losses', '–')} lost, {agree.get('wins', '–')} won of {agree.get('items', '–')}"
            rows.append((name, mode, *ratios, right, us(float(agree.get("p", "nan")))))
    return Table(("model", "mode", "logits", "hidden rows", "KL", "greedy tokens", "McNemar p"), tuple(rows))


def answers(found: Mapping[str, Any]) -> Table:
    """Exercises with marked items: one accuracy, or one a task."""
    rows = []
    for numbers in found.values():
        for exercise, result in numbers.items():
            by_task = {"": result} if "difference" in result else result
            for task, marks in by_task.items():
                if isinstance(marks, Mapping) and "difference" in marks:
                    shares = [f"{float(marks.get(side, 'nan')):.2%}" for side in ("candidate", "stock")]
                    items = str(marks.get("items", "–"))
                    rows.append((exercise, task, items, *shares, _ratio(marks["difference"])))
    return Table(("exercise", "task", "items", "candidate", "stock", "difference"), tuple(rows))


def departures(found: Mapping[str, Any]) -> Table:
    rows = []
    for numbers in found.values():
        for exercise, result in numbers.items():
            if "hazard" in result:
                sides = [f"{n} in {of}" for n, of in zip(result["departures"], result["watched"], strict=True)]
                rows.append((exercise, *sides, _ratio(result["hazard"])))
    return Table(("exercise", "candidate", "stock", "ratio, 99 %"), tuple(rows))


def mutants(entry: Entry) -> tuple[tuple[str, str, bool, str], ...]:
    """(defect, model, whether it was refused, what gave it away and where it was let through) each."""
    result = entry.result(MODEL)
    rows = []
    for defect, found in (result.evidence.get("mutants", {}) if result else {}).items():
        refused = bool(found.get("refused"))
        unseen = ", ".join(str(m) for m in found.get("passed_in", ())) if refused else ""
        also = f" Let through in {unseen}." if unseen else ""
        rows.append((str(defect), str(found.get("model", "")), refused, f"{found.get('first', '')}{also}"))
    return tuple(rows)


def beside(entry: Entry) -> tuple[tuple[str, str], ...]:
    """(op, candidate) of other ops that were in place in the same evaluation."""
    found = entry.evidence.facts.get(TOGETHER) if entry.evidence else None
    return tuple((str(op), str(c)[:12]) for op, c in found.items()) if isinstance(found, Mapping) else ()


def times(points: Iterable[PerfPoint]) -> Table:
    head = ("point", "tokens", "candidate", "best baseline", "ratio", "95 %", "roofline", "floor", "verdict")
    rows = []
    for p in points:
        baseline = f"{p.best_baseline} {us(p.baselines_us.get(p.best_baseline, float('nan')))}"
        interval = f"{p.ratio_low:.3f}–{p.ratio_high:.3f}"
        name = "/".join(p.problem.split("/")[1:]) + (f" {p.scenario}" if p.scenario else "")
        row = (name, str(p.tokens), us(p.candidate_us), baseline, f"{p.ratio:.3f}", interval)
        rows.append((*row, percent(p.roofline), us(p.floor_us), p.label))
    return Table(head, tuple(rows), tuple(range(1, 8)))


def _ratio(value: Any) -> Figure:
    if not isinstance(value, list | tuple) or len(value) != 3:
        return Figure("–")
    point, low, high = (float(v) for v in value)
    return Figure(f"{point:.3f} [{low:.3f}, {high:.3f}]")
