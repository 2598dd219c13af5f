"""The tables of a report that say what there is and where it comes from, as plain text.

Built objects, candidates, environment, provenance, and the commands that repeat it. Not covered: how they are written.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from kgen.gates import kinds
from kgen.gates.contract import GATE_CONTRACT
from kgen.loop.settings import ARCHS
from kgen.records import BuildRecord, Status
from kgen.report.document import Document, Entry
from kgen.report.plain import Cell, Code, Table, cut, pairs, us

ASKED = ("openai", "mailbox", "mcp")  # proposers that would answer differently if they were asked again
PYTHONS_WORDS = re.compile(r"[A-Za-z_]\w*(?:Error|Exception): ")
BUILT = ("arch", "dims", "tokens", "design", "launches", "blocks", "threads", "registers", "stack B", "smem B", "KiB")


def counts(doc: Document) -> str:
    """How many candidates reached what, as a sentence."""
    states = ("promotable", "staged", "not chosen", "failed", "error", "unfinished")
    said = ", ".join(f"{n} {state}" for state in states if (n := doc.counted(state)))
    return f"{len(doc.entries)} candidate{'s' * (len(doc.entries) != 1)}: {said}."


def built(builds: Sequence[BuildRecord]) -> Table:
    """What the builder made, a line for each arch, dims and design: the ranges over the token bins."""
    groups: dict[tuple[str, str, str], list[BuildRecord]] = {}
    for b in builds:
        groups.setdefault((b.problem.arch, b.problem.dims, b.design), []).append(b)
    rows = []
    for (arch, dims, design), group in groups.items():
        kernels = [k for b in group for k in b.kernels]
        launches = [launch for b in group for launch in b.launches]
        ranges = (
            [len(b.launches) for b in group],
            [x.grid[0] * x.grid[1] * x.grid[2] for x in launches],
            [x.block[0] * x.block[1] * x.block[2] for x in launches],
            [k.registers for k in kernels],
            [k.stack_bytes for k in kernels],
            [x.dynamic_smem for x in launches],
            [b.object_bytes // 1024 for b in group],
        )
        rows.append((arch, dims, _bins([b.problem.tokens for b in group]), design or "–", *map(_range, ranges)))
    return Table(BUILT, tuple(rows), tuple(range(4, 11)))


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


def mutants_built(entry: Entry) -> Mapping[str, str]:
    """Defect -> how many of its builds there are, in words."""
    result = entry.result("compile")
    return result.evidence.get("mutants", {}) if result else {}


def costs_measured(doc: Document) -> bool:
    return any(e.ranked and e.ranked.measured for e in doc.entries)


def candidates(doc: Document) -> Table:
    """One line each, the ranked ones first."""
    rows: list[tuple[Cell, ...]] = []
    for e in sorted(doc.entries, key=lambda e: (not e.rank, e.rank, e.number)):
        last = e.verdict.failed or next((r for r in e.results if r.status is Status.SKIP), None)
        stopped = last if e.state not in ("promotable", "staged") else None
        why = (Code(stopped.code), cut(gist(stopped.message), 100)) if stopped else ""
        place, price = (str(e.rank), us(e.ranked.us)) if e.ranked else ("–", "–")
        made = cut(label(e), 80)
        rows.append((str(e.number), Code(e.candidate.id[:12]), made, place, price, e.state, why))
    cost = "measured µs" if costs_measured(doc) else "static cost µs"
    return Table(("#", "candidate", "made by", "rank", cost, "state", "why"), tuple(rows), (0, 3, 4))


def gist(message: str) -> str:
    """The line of a message that says most: where the failing line of the source leads, Python's error comes last."""
    lines = message.strip().splitlines()
    return lines[-1] if lines and PYTHONS_WORDS.match(lines[-1]) else message


def label(entry: Entry) -> str:
    """The proposer, and its own short name for the candidate where it gave one."""
    origin = entry.candidate.origin
    named = next((str(origin.detail[k]) for k in ("label", "name", "family", "model") if k in origin.detail), "")
    return f"{origin.proposer}: {named}" if named else origin.proposer


def environment(entry: Entry) -> Table:
    evidence = entry.evidence
    if evidence is None:
        return pairs()
    e = evidence.environment
    return pairs(
        ("GPU", f"{e.gpu} ({e.arch}, {e.sms} SMs, {e.l2_bytes >> 20} MiB L2, {e.memory_bytes >> 30} GiB)"),
        ("clocks", f"SM {e.sm_clock_mhz} MHz, memory {e.memory_clock_mhz} MHz, power limit {e.power_limit_w} W"),
        ("driver, CUDA", f"{e.driver}, {e.cuda}"),
        ("torch, tvm-ffi, Python", f"{e.torch}, {e.tvm_ffi}, {e.python}"),
        ("CuTe DSL runtime", e.runtime_flavour),
        ("when", f"{evidence.started} to {evidence.finished}"),
    )


def provenance(doc: Document) -> Table:
    rows: list[tuple[str, Cell]] = [
        ("run", Code(doc.run.id)),
        ("created, finished", f"{doc.run.created}, {doc.run.finished or 'not yet'}"),
        ("kgen", doc.run.version),
        ("op contract", Code(doc.op.contract_sha256())),
        ("gate contract", str(GATE_CONTRACT)),
    ]
    if doc.subject is not None:
        rows += made_how(doc.subject)
    rows.append(("proposals", spent(doc) or "–"))
    return pairs(*rows, limit=400)


def made_how(entry: Entry) -> list[tuple[str, Cell]]:
    """Where a candidate, its objects and its evidence come from."""
    origin = entry.candidate.origin
    detail = ", ".join(f"{k}={v}" for k, v in sorted(origin.detail.items()) if isinstance(v, str | int | float))
    rows: list[tuple[str, Cell]] = [
        ("candidate", Code(entry.candidate.id)),
        ("made by", (cut(origin.proposer, 220), detail)),
    ]
    if entry.builds:
        compiler = entry.builds[0].compiler
        rows.append(("compiler", f"nvidia-cutlass-dsl {compiler.version} ({compiler.flavour})"))
        rows.append(("isolation", ", ".join(sorted({b.isolation for b in entry.builds}))))
    if entry.evidence is not None:
        rows.append(("evidence", (f"{entry.trust}, of run", Code(entry.evidence.run))))
        rows.append(("raw samples", Code(entry.evidence.raw_sha256)))
    return rows


def objects(builds: Sequence[BuildRecord]) -> Table:
    rows = tuple((Code(b.problem.key), Code(b.object_sha256)) for b in builds)
    return Table(("point", "sha256 of the object"), rows)


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


def reproduce(doc: Document) -> str:
    """Shell commands, a line each."""
    lines = [_anywhere(doc.run.command) or f"kgen propose --op {doc.op.name} --seed {doc.settings.seed}"]
    if doc.settings.proposer in ASKED:
        lines = [f"# was: {lines[0]}", f"{_matrix(doc)} --replay {doc.run.id}"]
    lines += [f"kgen kit {doc.run.id} -o kit.pyz   # then, on a GPU host: python kit.pyz"]
    lines += ["kgen ingest evidence.json --raw raw.json.xz"] if kinds.of(doc.op).here else []
    lines += [f"kgen report {doc.run.id}"]
    return "\n".join(lines)


def _anywhere(command: str) -> str:
    """A command without the places of the machine on which it was given: a reader has others."""
    words = shlex.split(command)
    places = {at + here for at, word in enumerate(words) if word in ("--runs", "--set") for here in (0, 1)}
    return shlex.join(word for at, word in enumerate(words) if at not in places)


def _matrix(doc: Document) -> str:
    """The command that proposes for the same points as this run, and as many candidates."""
    settings, pack = doc.settings, doc.op.pack
    given: tuple[tuple[str, Sequence[object], Sequence[object]], ...] = (
        ("--arch", settings.archs, ARCHS),
        ("--dims", settings.dims, (*doc.op.served, pack.small)),
        ("--tokens", settings.bins, pack.bins),
    )
    options = "".join(f" {o} {value}" for o, values, usual in given if values != usual for value in values)
    options += "".join(f" --axis {name}={value}" for name, value in settings.axes.items())
    return f"kgen propose --op {doc.op.name}{options} --candidates {settings.candidates}"
