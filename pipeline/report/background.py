"""The sections of the Markdown report that say what there is and where it comes from, each of the document."""

import re
from collections.abc import Sequence

from kgen.gates.contract import GATE_CONTRACT
from kgen.loop.settings import ARCHS
from kgen.records import BuildRecord, Status
from kgen.report.document import Document, Entry
from kgen.report.text import cell, code, details, fenced, table, us

SHOWN_LOGS = 12
ASKED = ("openai", "mailbox", "mcp")  # proposers that would answer differently if they were asked again
PYTHONS_WORDS = re.compile(r"[A-Za-z_]\w*(?:Error|Exception): ")


def counts(doc: Document) -> str:
    """How many candidates reached what, as a sentence."""
    states = ("promotable", "staged", "not chosen", "failed", "error", "unfinished")
    said = ", ".join(f"{n} {state}" for state in states if (n := doc.counted(state)))
    return f"{len(doc.entries)} candidate{'s' * (len(doc.entries) != 1)}: {said}."


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
        stopped = last if e.state not in ("promotable", "staged") else None
        why = f"{code(stopped.code)} {cell(_gist(stopped.message), 100)}" if stopped else ""
        place, price = (str(e.rank), us(e.ranked.us)) if e.ranked else ("–", "–")
        rows.append([str(e.number), code(e.candidate.id[:12]), cell(label(e), 80), place, price, e.state, why])
    head = ["#", "candidate", "made by", "rank", cost, "state", "why"]
    note = "" if measured else " The cost is a guess from the builds (kgen.loop.cost), summed over the quick points."
    return f"## Candidates\n\n{counts(doc)}{note}\n\n" + table(head, rows, right=(0, 3, 4))


def _gist(message: str) -> str:
    """The line of a message that says most: where the failing line of the source leads, Python's error comes last."""
    lines = message.strip().splitlines()
    return lines[-1] if lines and PYTHONS_WORDS.match(lines[-1]) else message


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
    rows.append(["proposals", cell(spent(doc)) or "–"])
    text = "## Provenance\n\n" + table(["", ""], rows)
    objects = [[code(b.problem.key), code(b.object_sha256)] for b in (doc.subject.sound_builds if doc.subject else ())]
    if objects:
        text += "\n\n" + details(f"{len(objects)} objects", table(["point", "sha256 of the object"], objects))
    return text


def spent(doc: Document) -> str:
    """What the proposals took, "" where nothing was asked: `2 requests, 2000 + 400 tokens, 0.008 USD, 12.3 s`."""
    u = doc.usage
    if not u.get("attempts"):
        return ""
    tokens = [int(u.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")]
    guess = " (estimated)" if any(r.usage.get("estimated") for r in doc.rounds) else ""
    parts = (
        f"{u['attempts']} request{'s' if u['attempts'] != 1 else ''}",
        f"{tokens[0]} + {tokens[1]} tokens{guess}" if any(tokens) else "",
        f"{u['cost_usd']:.4g} USD" if u.get("cost_usd") else "",
        f"{u.get('seconds', 0):.1f} s",
    )
    return ", ".join(part for part in parts if part)


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
    if doc.settings.proposer in ASKED:
        lines = [f"# was: {lines[0]}", f"{_matrix(doc)} --replay {doc.run.id}"]
    lines += [f"kgen kit {doc.run.id} -o kit.pyz   # then, on a GPU host: python kit.pyz"]
    lines += ["kgen ingest evidence.json --raw raw.json.xz", f"kgen report {doc.run.id}"]
    text = "\n".join(line.replace("`", "'") for line in lines)
    return f"## Reproduce\n\n```sh\n{text}\n```"


def _matrix(doc: Document) -> str:
    """The command that proposes for the same points as this run, and as many candidates."""
    settings, pack = doc.settings, doc.op.pack
    given: tuple[tuple[str, Sequence[object], Sequence[object]], ...] = (
        ("--arch", settings.archs, ARCHS),
        ("--dims", settings.dims, (*pack.served, pack.small)),
        ("--tokens", settings.bins, pack.bins),
    )
    options = "".join(f" {o} {value}" for o, values, usual in given if values != usual for value in values)
    options += "".join(f" --axis {name}={value}" for name, value in settings.axes.items())
    return f"kgen propose --op {doc.op.name}{options} --candidates {settings.candidates}"


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
