"""The sections of the Markdown report that judge, each a function of the document; "" where there is nothing to say."""

from collections.abc import Iterable, Mapping
from typing import Any

from kgen.diagnosis.shown import of_failure
from kgen.gates.kit_results import TOGETHER
from kgen.gates.kit_units import GATE_NAMES
from kgen.records import GATES, PerfPoint, Status
from kgen.records.envelope import HEADLINE, envelope
from kgen.records.manifest import OWN_KEY
from kgen.report.background import counts
from kgen.report.document import Document, Entry
from kgen.report.text import cell, code, details, percent, sci, table, us

MARK: Mapping[Status, str] = {Status.PASS: "✅", Status.FAIL: "❌", Status.ERROR: "⚠️", Status.SKIP: "⏭️"}
MOST_FOUND = 3
NUMERIC, MODEL = GATE_NAMES["numeric"], GATE_NAMES["model"]


def headline(doc: Document) -> str:
    """The verdict, in one line and one paragraph."""
    subject = doc.subject
    if subject is None:
        return f"# {doc.op.name}: nothing was proposed\n\nNext: {code(doc.next_command)}"
    name = code(subject.candidate.id[:12])
    title = f"# {doc.op.name}: {subject.state.upper()}: candidate {name}"
    return f"{title}\n\n{SAY[subject.state](doc, subject)}\n\nNext: {code(doc.next_command)}"


def _promotable(doc: Document, entry: Entry) -> str:
    evidence = entry.evidence
    labels = list(envelope(evidence.points).values()) if evidence else []
    where = f" on {cell(evidence.environment.gpu)} ({evidence.arch})" if evidence else ""
    trust = "" if entry.trust == OWN_KEY else " **The evidence is self-reported: it promotes only with `--trust`.**"
    said = f"All four gates passed{where}: {labels.count('win')} points win, {labels.count('tie')} tie"
    return f"{said}, worst upper bound {entry.ratio:.3f} of the best baseline.{trust} {counts(doc)}"


def _staged(doc: Document, entry: Entry) -> str:
    waiting = [r.gate for r in entry.results if r.status is Status.SKIP or r.interpreted]
    builds = entry.sound_builds
    archs = ", ".join(dict.fromkeys(b.problem.arch for b in builds))
    said = f"It was built and audited at {len(builds)} points ({archs}). **Not proven yet: {', '.join(waiting)}**"
    numbers = entry.result(NUMERIC)
    right = " Its numbers are right in the PTX interpreter." if numbers and numbers.interpreted else ""
    return f"Everything that can be checked without a GPU passed.{right} {said}: a GPU has to say. {counts(doc)}"


def _failed(doc: Document, entry: Entry) -> str:
    failed = entry.verdict.failed
    assert failed is not None  # that is what its state says
    blame = "The tool or the machine failed" if failed.status is Status.ERROR else "Refused"
    return f"{blame} at {failed.gate}: {code(failed.code)}: {cell(failed.message)} {counts(doc)}"


def _unfinished(doc: Document, entry: Entry) -> str:
    why = "; ".join(f"{code(r.code)}: {cell(r.message)}" for r in entry.results)
    return f"No candidate came to a verdict about all that can be checked here. {why} {counts(doc)}"


SAY = {
    "promotable": _promotable,
    "staged": _staged,
    "failed": _failed,
    "error": _failed,
    "not chosen": _unfinished,
    "unfinished": _unfinished,
}


def gates(doc: Document) -> str:
    if doc.subject is None:
        return ""
    rows = []
    for gate in GATES:
        result = doc.subject.result(gate)
        if result is None:
            rows.append([gate, "–", "", "not run", ""])
            continue
        mark = f"{MARK[result.status]} {result.status}{' (interpreted)' if result.interpreted else ''}"
        rows.append([gate, mark, code(result.code), cell(result.message), f"{result.seconds:.1f}"])
    return "## Gates\n\n" + table(["gate", "status", "code", "what it found", "s"], rows, right=(4,))


def found(doc: Document) -> str:
    """The most informative findings about a candidate that a gate refused, one line each."""
    failed = doc.subject.verdict.failed if doc.subject else None
    if failed is None or failed.status is not Status.FAIL:
        return ""
    lines = [f"* {cell(f.line)}" for f in of_failure(failed).findings[:MOST_FOUND]]
    return "## What was found\n\n" + "\n".join(lines) if lines else ""


def numeric(doc: Document) -> str:
    """The most strained row of each dims and output, and where it is."""
    rows = _numeric_rows(doc.subject)
    if not rows:
        return ""
    head = ["dims", "output", "worst at", "true: cand.", "stock", "rounded", "allowed"]
    head += ["rounded: cand.", "stock", "allowed", "bit-exact"]
    body = []
    for (dims, output), row in worst_rows(rows).items():
        where = f"{row['what']}, {'/'.join(str(row['problem']).split('/')[2:])}"
        errors = [sci(row.get(k)) for k in ("candidate_true", "stock_true", "rounded_true", "allowed_true")]
        errors += [sci(row.get(k)) for k in ("candidate_rounded", "stock_rounded", "allowed_rounded")]
        exact = percent(row["bit_exact"]) if isinstance(row.get("bit_exact"), int | float) else "exact"
        body.append([cell(dims), cell(output), cell(where), *errors, exact])
    judged = sum(int(r.get("judged", 1)) for r in rows)
    said = (
        "Relative L2 distances to true float64 and to float64 rounded as the op says; each line is the most strained of"
        f" its dims and output. {judged} comparisons in all, over {len({r['what'] for r in rows})} kinds of input."
    )
    return f"## Numbers\n\n{said}\n\n" + table(head, body, right=range(3, 11))


def _numeric_rows(entry: Entry | None) -> list[Mapping[str, Any]]:
    result = entry.result(NUMERIC) if entry else None
    found = result.evidence.get("table", ()) if result else ()
    return [r for r in found if isinstance(r, Mapping) and {"problem", "what"} <= set(r)]


def worst_rows(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """By (dims, output): the row that uses most of what is allowed."""
    worst: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = (str(row["problem"]).split("/")[1], str(row.get("output", "")))
        if key not in worst or float(row.get("strain", 0)) > float(worst[key].get("strain", 0)):
            worst[key] = row
    return worst


def model(doc: Document) -> str:
    result = doc.subject.result(MODEL) if doc.subject else None
    models = result.evidence.get("models", {}) if result else {}
    if result is None or not models:
        return ""
    rows = []
    for name, numbers in models.items():
        for mode, pooled in numbers.get("rows", {}).get("modes", {}).items():
            ratios = [_ratio(pooled.get(k)) for k in ("logits", "hidden", "kl")]
            agree = pooled.get("agreement", {})
            right = f"{agree.get('losses', '–')} lost, {agree.get('wins', '–')} won of {agree.get('items', '–')}"
            rows.append([cell(name), cell(mode), *ratios, right, us(float(agree.get("p", "nan")))])
    said = "Distances to float64 of the candidate's decode over stock's own (1 = as near), with 95 % intervals."
    head = ["model", "mode", "logits", "hidden rows", "KL", "greedy tokens", "McNemar p"]
    parts = [f"## In the model\n\n{said}\n\n" + table(head, rows)]
    if beside := _beside(doc):
        parts.append(f"Judged with other candidates in place as well, all at once: {beside}.")
    if answers := _answers(models):
        words = "Items that each side answered; the difference is candidate minus stock, with its 95 % interval."
        parts.append(f"{words}\n\n" + table(["exercise", "task", "items", "candidate", "stock", "difference"], answers))
    if paths := _departures(models):
        words = (
            "How often greedy tokens depart: from stock in free generation (stock: in another batch composition), from "
            "plain decoding with drafts; the ratio is of departures a token, candidate over stock."
        )
        parts.append(f"{words}\n\n" + table(["exercise", "candidate", "stock", "ratio, 99 %"], paths))
    mutants = result.evidence.get("mutants", {})
    for defect, found in mutants.items():
        verdict = "refused" if found.get("refused") else "**passed: the gate is blind**"
        unseen = ", ".join(str(m) for m in found.get("passed_in", ())) if found.get("refused") else ""
        also = f" Let through in {cell(unseen)}." if unseen else ""
        parts.append(
            f"Mutant {code(defect)} ({cell(found.get('model', ''))}): {verdict}. {cell(found.get('first', ''))}{also}"
        )
    return "\n\n".join(parts)


def _beside(doc: Document) -> str:
    """Candidates of other ops that were in place in the same evaluation."""
    evidence = doc.subject.evidence if doc.subject else None
    found = evidence.facts.get(TOGETHER) if evidence else None
    return ", ".join(f"{cell(op)} {code(str(c)[:12])}" for op, c in found.items()) if isinstance(found, Mapping) else ""


def _answers(models: Mapping[str, Any]) -> list[list[str]]:
    """Exercises with marked items: one accuracy, or one a task."""
    rows = []
    for numbers in models.values():
        for exercise, found in numbers.items():
            by_task = {"": found} if "difference" in found else found
            for task, marks in by_task.items():
                if isinstance(marks, Mapping) and "difference" in marks:
                    shares = [f"{float(marks.get(side, 'nan')):.2%}" for side in ("candidate", "stock")]
                    items = str(marks.get("items", "–"))
                    rows.append([cell(exercise), cell(task), items, *shares, _ratio(marks["difference"])])
    return rows


def _departures(models: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for numbers in models.values():
        for exercise, found in numbers.items():
            if "hazard" in found:
                sides = [f"{n} in {of}" for n, of in zip(found["departures"], found["watched"], strict=True)]
                rows.append([cell(exercise), *sides, _ratio(found["hazard"])])
    return rows


def _ratio(value: Any) -> str:
    if not isinstance(value, list | tuple) or len(value) != 3:
        return "–"
    point, low, high = (float(v) for v in value)
    return f"{point:.3f} [{low:.3f}, {high:.3f}]"


def speed(doc: Document) -> str:
    points = doc.subject.evidence.points if doc.subject and doc.subject.evidence else ()
    if not points:
        return ""
    first = [p for p in points if p.column == HEADLINE]
    others = [p for p in points if p.column != HEADLINE]
    said = (
        f"µs a call, medians; the ratio is candidate / best baseline with its 95 % bootstrap interval over paired"
        f" repetitions. The **{HEADLINE}** column decides ({cell(first[0].timer if first else '')}); roofline is"
        " the floor by bytes at a plain read's rate over the measured time."
    )
    text = f"## Speed\n\n{said}\n\n{_points(first)}"
    for column in dict.fromkeys(p.column for p in others):
        mine = [p for p in others if p.column == column]
        text += "\n\n" + details(f"{cell(column)} ({cell(mine[0].timer)})", _points(mine))
    return text


def _points(points: Iterable[PerfPoint]) -> str:
    head = ["point", "tokens", "candidate", "best baseline", "ratio", "95 %", "roofline", "floor", "verdict"]
    rows = []
    for p in points:
        baseline = f"{cell(p.best_baseline)} {us(p.baselines_us.get(p.best_baseline, float('nan')))}"
        interval = f"{p.ratio_low:.3f}–{p.ratio_high:.3f}"
        name = "/".join(p.problem.split("/")[1:]) + (f" {p.scenario}" if p.scenario else "")
        row = [name, str(p.tokens), us(p.candidate_us), baseline, f"{p.ratio:.3f}", interval]
        rows.append([*row, percent(p.roofline), us(p.floor_us), p.label])
    return table(head, rows, right=range(1, 8))
