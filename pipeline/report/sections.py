"""The sections of the Markdown report, each a function of the document; "" where there is nothing to say."""

from collections.abc import Iterable, Mapping
from typing import Any

from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit_units import GATE_NAMES
from kgen.records import GATES, BuildRecord, PerfPoint, Status
from kgen.records.envelope import HEADLINE, envelope
from kgen.report.document import Document, Entry
from kgen.report.text import cell, code, details, fenced, percent, sci, table, us

MARK: Mapping[Status, str] = {Status.PASS: "✅", Status.FAIL: "❌", Status.ERROR: "⚠️", Status.SKIP: "⏭️"}
NUMERIC, MODEL, PERF = (GATE_NAMES[name] for name in ("numeric", "model", "perf"))
SHOWN_LOGS = 12


def headline(doc: Document) -> str:
    """The verdict, in one line and one paragraph."""
    subject = doc.subject
    if subject is None:
        return f"# {doc.op.name}: nothing was proposed\n\nNext: {code(doc.next_command)}"
    name = code(subject.candidate.id[:12])
    title = f"# {doc.op.name}: {subject.state.upper()}: candidate {name}"
    return f"{title}\n\n{SAY[subject.state](doc, subject)}\n\nNext: {code(doc.next_command)}"


def _counts(doc: Document) -> str:
    states = ("promotable", "staged", "not chosen", "failed", "error", "unfinished")
    counts = ", ".join(f"{n} {state}" for state in states if (n := doc.counted(state)))
    return f"{len(doc.entries)} candidates: {counts}."


def _promotable(doc: Document, entry: Entry) -> str:
    evidence = entry.evidence
    labels = list(envelope(evidence.points).values()) if evidence else []
    where = f" on {cell(evidence.environment.gpu)} ({evidence.arch})" if evidence else ""
    trust = "" if entry.trust == "own-key" else " **The evidence is self-reported: it promotes only with `--trust`.**"
    said = f"All four gates passed{where}: {labels.count('win')} points win, {labels.count('tie')} tie"
    return f"{said}, worst upper bound {entry.ratio:.3f} of the best baseline.{trust} {_counts(doc)}"


def _staged(doc: Document, entry: Entry) -> str:
    waiting = [r.gate for r in entry.results if r.status is Status.SKIP]
    builds = entry.sound_builds
    archs = ", ".join(dict.fromkeys(b.problem.arch for b in builds))
    said = f"It was built and audited at {len(builds)} points ({archs}). **Not proven yet: {', '.join(waiting)}**"
    return f"Everything that can be checked without a GPU passed. {said}: a GPU has to say. {_counts(doc)}"


def _failed(doc: Document, entry: Entry) -> str:
    failed = entry.verdict.failed
    assert failed is not None  # that is what its state says
    blame = "The tool or the machine failed" if failed.status is Status.ERROR else "Refused"
    return f"{blame} at {failed.gate}: {code(failed.code)}: {cell(failed.message)} {_counts(doc)}"


def _unfinished(doc: Document, entry: Entry) -> str:
    why = "; ".join(f"{code(r.code)}: {cell(r.message)}" for r in entry.results)
    return f"No candidate came to a verdict about all that can be checked here. {why} {_counts(doc)}"


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
        mark = f"{MARK[result.status]} {result.status}"
        rows.append([gate, mark, code(result.code), cell(result.message), f"{result.seconds:.1f}"])
    return "## Gates\n\n" + table(["gate", "status", "code", "what it found", "s"], rows, right=(4,))


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
    dims = result.evidence.get("dims", {}) if result else {}
    if result is None or not dims:
        return ""
    rows = []
    for name, numbers in dims.items():
        for mode, pooled in numbers.get("modes", {}).items():
            ratios = [_ratio(pooled.get(k)) for k in ("logits", "hidden", "kl")]
            agree = pooled.get("agreement", {})
            right = f"{agree.get('losses', '–')} lost, {agree.get('wins', '–')} won of {agree.get('items', '–')}"
            rows.append([cell(name), cell(mode), *ratios, right, us(float(agree.get("p", "nan")))])
    said = "Distances to float64 of the candidate's decode over stock's own (1 = as near), with 95 % intervals."
    head = ["dims", "mode", "logits", "hidden rows", "KL", "greedy tokens", "McNemar p"]
    parts = [f"## In the model\n\n{said}\n\n" + table(head, rows)]
    mutants = result.evidence.get("mutants", {})
    for defect, found in mutants.items():
        verdict = "refused" if found.get("refused") else "**passed: the gate is blind**"
        parts.append(
            f"Mutant {code(defect)} ({cell(found.get('dims', ''))}): {verdict}. {cell(found.get('first', ''))}"
        )
    return "\n\n".join(parts)


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
        name = "/".join(p.problem.split("/")[1:])
        row = [name, str(p.tokens), us(p.candidate_us), baseline, f"{p.ratio:.3f}", interval]
        rows.append([*row, percent(p.roofline), us(p.floor_us), p.label])
    return table(head, rows, right=range(1, 8))


def built(doc: Document) -> str:
    """What the builder made, a line for each arch, dims and design: the ranges over the token bins."""
    builds = doc.subject.sound_builds if doc.subject else ()
    if not builds:
        return ""
    groups: dict[tuple[str, str, str], list[BuildRecord]] = {}
    for b in builds:
        groups.setdefault((b.problem.arch, b.problem.dims, b.design), []).append(b)
    rows = []
    for (arch, dims, design), group in groups.items():
        kernels = [k for b in group for k in b.kernels]
        launches = [launch for b in group for launch in b.launches]
        smem = [x.dynamic_smem for x in launches]
        rows.append(
            [
                arch,
                cell(dims),
                _bins([b.problem.tokens for b in group]),
                cell(design) or "–",
                _range([len(b.launches) for b in group]),
                _range([x.grid[0] * x.grid[1] * x.grid[2] for x in launches]),
                _range([x.block[0] * x.block[1] * x.block[2] for x in launches]),
                _range([k.registers for k in kernels]),
                _range([k.stack_bytes for k in kernels]),
                _range(smem),
                _range([b.object_bytes // 1024 for b in group]),
            ]
        )
    head = [
        "arch",
        "dims",
        "tokens",
        "design",
        "launches",
        "blocks",
        "threads",
        "registers",
        "stack B",
        "smem B",
        "KiB",
    ]
    result = doc.subject.result("compile") if doc.subject else None
    mutants = result.evidence.get("mutants", {}) if result else {}
    said = "; ".join(f"{code(name)}: {cell(text)}" for name, text in mutants.items())
    tail = f"\n\nMutants for the model gate: {said}." if said else ""
    return "## Built\n\n" + table(head, rows, right=range(4, 11)) + tail


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def _bins(values: list[int]) -> str:
    """1, 2, 3, 4, 16 as "1–4, 16"."""
    out: list[list[int]] = []
    for value in sorted(set(values)):
        if out and value == out[-1][-1] + 1:
            out[-1].append(value)
        else:
            out.append([value])
    return ", ".join(_range(run) for run in out)


def candidates(doc: Document) -> str:
    if len(doc.entries) < 1:
        return ""
    measured = any(e.ranked and e.ranked.measured for e in doc.entries)
    cost = "measured µs" if measured else "static cost µs"
    rows = []
    for e in sorted(doc.entries, key=lambda e: (not e.rank, e.rank, e.number)):
        last = e.verdict.failed or next((r for r in e.results if r.status is Status.SKIP), None)
        why = f"{code(last.code)} {cell(last.message, 100)}" if last and e.state not in ("promotable", "staged") else ""
        place, price = (str(e.rank), us(e.ranked.us)) if e.ranked else ("–", "–")
        rows.append([str(e.number), code(e.candidate.id[:12]), cell(label(e), 80), place, price, e.state, why])
    head = ["#", "candidate", "made by", "rank", cost, "state", "why"]
    note = "" if measured else " The cost is a guess from the builds (kgen.loop.cost), summed over the quick points."
    return f"## Candidates\n\n{_counts(doc)}{note}\n\n" + table(head, rows, right=(0, 3, 4))


def label(entry: Entry) -> str:
    """The proposer, and its own short name for the candidate where it gave one."""
    origin = entry.candidate.origin
    named = next((str(origin.detail[k]) for k in ("label", "name", "family", "model") if k in origin.detail), "")
    return f"{origin.proposer}: {named}" if named else origin.proposer


def environment(doc: Document) -> str:
    evidence = doc.subject.evidence if doc.subject else None
    if evidence is None:
        return ""
    e = evidence.environment
    rows = [
        ["GPU", f"{cell(e.gpu)} ({e.arch}, {e.sms} SMs, {e.l2_bytes >> 20} MiB L2, {e.memory_bytes >> 30} GiB)"],
        ["clocks", f"SM {e.sm_clock_mhz} MHz, memory {e.memory_clock_mhz} MHz, power limit {e.power_limit_w} W"],
        ["driver, CUDA", f"{cell(e.driver)}, {cell(e.cuda)}"],
        ["torch, tvm-ffi, Python", f"{cell(e.torch)}, {cell(e.tvm_ffi)}, {cell(e.python)}"],
        ["CuTe DSL runtime", cell(e.runtime_flavour)],
        ["when", f"{cell(evidence.started)} to {cell(evidence.finished)}"],
    ]
    return "## Environment\n\n" + table(["", ""], rows)


def provenance(doc: Document) -> str:
    rows = [
        ["run", code(doc.run.id)],
        ["created, finished", f"{cell(doc.run.created)}, {cell(doc.run.finished) or 'not yet'}"],
        ["kgen", cell(doc.run.version)],
        ["op contract", code(doc.op.contract_sha256())],
        ["gate contract", str(GATE_CONTRACT)],
    ]
    if doc.subject is not None:
        rows += _subject_provenance(doc.subject)
    usage = ", ".join(f"{name} {value:g}" for name, value in doc.usage.items() if value)
    rows.append(["proposals", cell(usage) or "–"])
    text = "## Provenance\n\n" + table(["", ""], rows)
    objects = [[code(b.problem.key), code(b.object_sha256)] for b in (doc.subject.sound_builds if doc.subject else ())]
    if objects:
        text += "\n\n" + details(f"{len(objects)} objects", table(["point", "sha256 of the object"], objects))
    return text


def _subject_provenance(entry: Entry) -> list[list[str]]:
    origin = entry.candidate.origin
    detail = ", ".join(f"{k}={v}" for k, v in sorted(origin.detail.items()) if isinstance(v, str | int | float))
    rows = [["candidate", code(entry.candidate.id)], ["made by", f"{cell(origin.proposer)} {cell(detail, 400)}"]]
    if entry.builds:
        compiler = entry.builds[0].compiler
        rows.append(["compiler", f"nvidia-cutlass-dsl {cell(compiler.version)} ({cell(compiler.flavour)})"])
        rows.append(["isolation", cell(", ".join(sorted({b.isolation for b in entry.builds})))])
    if entry.evidence is not None:
        rows.append(["evidence", f"{entry.trust}, of run {code(entry.evidence.run)}"])
        rows.append(["raw samples", code(entry.evidence.raw_sha256)])
    return rows


def reproduce(doc: Document) -> str:
    lines = [doc.run.command or f"kgen propose --op {doc.op.name} --seed {doc.settings.seed}"]
    lines += [f"kgen kit {doc.run.id} -o kit.pyz   # then, on a GPU host: python kit.pyz"]
    lines += ["kgen ingest evidence.json --raw raw.json.xz", f"kgen report {doc.run.id}"]
    text = "\n".join(line.replace("`", "'") for line in lines)
    return f"## Reproduce\n\n```sh\n{text}\n```"


def logs(doc: Document) -> str:
    """What gates said to candidates that failed, whole up to a cap; the latest first dropped."""
    parts: list[str] = []
    for entry in doc.entries:
        failed = entry.verdict.failed
        if failed is not None and len(parts) < SHOWN_LOGS:
            title = (
                f"{entry.number}: <code>{entry.candidate.id[:12]}</code> {failed.gate} <code>{cell(failed.code)}</code>"
            )
            parts.append(details(title, fenced(failed.message)))
    return "## Logs\n\n" + "\n\n".join(parts) if parts else ""
