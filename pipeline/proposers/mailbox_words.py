"""A verdict in plain words, for whoever wrote the candidate: what each gate did, what it said, what to do next.

How the candidate stands in its run comes first, then what was found, then messages of compilers and gates; foreign text
is quoted as data. Not covered: the feedback that a prompt carries (`feedback`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kgen.diagnosis.findings import Diagnosis
from kgen.diagnosis.shown import of_speed, of_verdict, shown
from kgen.diagnosis.words import cell
from kgen.proposers.base import Place, Situation, Standings
from kgen.proposers.feedback import SHOWN, served
from kgen.proposers.quoting import quoted
from kgen.records import GATES, Candidate, GateResult, Status, Verdict

SPEED_TOKENS = 500  # of what the compiler made of a right candidate

QUESTION: Mapping[str, str] = {
    "compile": "does it build in the sandbox at every point, and does its object launch its own kernels only?",
    "unit-numeric": "are its numbers right on every family of inputs?",
    "full-model-eval": "does the decode model stay as good with it?",
    "perf-sweep": "is it faster than the best baseline?",
}
SAID: Mapping[Status, str] = {
    Status.PASS: "passed",
    Status.FAIL: "failed",
    Status.ERROR: "error of kgen or of the machine, not of the candidate",
    Status.SKIP: "not run here",
}
OUTCOMES: Mapping[str, str] = {
    "promotable": "A candidate passed all four gates. A person may promote it.",
    "staged": "A candidate passed everything that this machine can check; the other gates need a GPU.",
    "refused": "No candidate came through.",
    "error": "kgen or the machine failed; a person can go on with the run.",
    "nothing": "There was no candidate.",
}


def state(verdict: Verdict) -> str:
    """`promotable`, `staged`, `refused`, `error`, or `incomplete`."""
    failed = verdict.failed
    if failed is not None:
        return "error" if failed.status is Status.ERROR else "refused"
    return "promotable" if verdict.promotable else "staged" if verdict.staged else "incomplete"


def verdict_page(candidate: Candidate, verdict: Verdict, standings: Standings | None = None) -> str:
    """Markdown; the same verdict with the same standings gives the same text."""
    failed, now = verdict.failed, standings or Standings()
    where = f" at `{cell(failed.gate)}` with `{cell(failed.code)}`" if failed else ""
    lines = [f"# Candidate {candidate.id[:12]}: {state(verdict)}{where}", "", *_gates(verdict), "", _next(verdict, now)]
    lines += ["", *standing(candidate.id, now)]
    if failed is not None and failed.status is Status.FAIL and (found := shown(of_verdict(verdict))):
        lines.append(quoted(found, "findings, most informative first"))
    if now.place(candidate.id) and (found := _made(verdict, now.small)):
        lines.append(quoted(found, "what the compiler made of it, by phase and launch"))
    lines += [line for line in (_builds(r) for r in verdict.results) if line]
    parts = [quoted(r.message, f"message of gate {r.gate}") for r in verdict.results if _worth_quoting(r)]
    return "\n".join([*lines, *parts]).rstrip() + "\n"


def _gates(verdict: Verdict) -> list[str]:
    return [_gate(gate, verdict.result(gate)) for gate in GATES]


def _gate(gate: str, result: GateResult | None) -> str:
    said = "not reached" if result is None else f"{SAID[result.status]}, `{cell(result.code)}`"
    if result is not None and result.passed and result.interpreted:
        said += " (in the PTX interpreter, on the CPU)"
    return f"* `{gate}` ({QUESTION[gate]}): {said}"


def _builds(result: GateResult) -> str:
    """What the compile gate did, in plain words instead of its own; "" for any other result. That some builds were
    made by the quick tier before says nothing to a writer."""
    problems = result.evidence.get("problems")
    if result.gate != "compile" or not result.passed or not isinstance(problems, Mapping):
        return ""
    return f"It was built and audited at {_of(len(problems), 'point')}.\n"


def _worth_quoting(result: GateResult) -> bool:
    """What went wrong, and what a gate that ran measured; why one did not run is no news for a writer."""
    said = result.status in (Status.FAIL, Status.ERROR) or result.passed
    return said and bool(result.message.strip()) and not _builds(result)


def _next(verdict: Verdict, now: Standings) -> str:
    """What it means, and what to do next: nothing where nothing more is asked."""
    words = {
        "refused": ("", "Find the cause in what the gate said below, and correct the whole file in the next answer."),
        "error": ("This says nothing about your candidate: it is tried again when the run goes on.", ""),
        "staged": ("It is right as far as can be checked here.", "If you go on, write a faster one."),
        "promotable": ("It passed everything.", "If you go on, write a faster one."),
        "incomplete": ("It was set aside for better ones of its round.", "Other designs may do better."),
    }
    meaning, todo = words[state(verdict)]
    over = f"Nothing more is asked in this run: {now.over}." if now.over else todo
    return " ".join(part for part in (meaning, over) if part)


def standing(candidate: str, now: Standings) -> list[str]:
    """How a candidate stands in its run, which one is the best and why, what its static cost is made of; Markdown."""
    if not now.places:
        return []
    place, best = now.place(candidate), now.places[0]
    of = f"{_of(len(now.places), 'candidate')} that no gate refused"
    if place is None:
        said = f"It has no rank. Of the {of} the best so far is {_named(best)}."
    elif place is best:
        said = f"It is the best so far, number 1 of the {of}: {best.value}."
    else:
        said = f"It is number {place.rank} of the {of}: {place.value}. The best so far is {_named(best)}."
    lines = ["## How it stands", "", said, f"The run's order: by {now.measure}, least first.", ""]
    told = now.costs.get(candidate, ())
    return [*lines, *(["What its static cost is made of:", "", *(f"* {t}" for t in told), ""] if told else [])]


def _named(place: Place) -> str:
    answer = f" (`{place.answer.rpartition('/')[2]}`)" if place.answer.startswith("mailbox/") else ""
    return f"{place.id[:SHOWN]}{answer}: {place.value}"


def _made(verdict: Verdict, small: str) -> str:
    """Bytes by phase, then launches, from the builds at the dims that are served, where there are any.

    Grids of small builds alone are no ground for advice.
    """
    compiled = served(verdict.result("compile"), small)
    problems = compiled.evidence.get("problems") if compiled else None
    advice = isinstance(problems, Mapping) and any(key.split("/")[1:2] != [small] for key in problems)
    wanted = ("wait", "phases", "launch")
    keep = ("wait",) if not advice else wanted
    found = [f if f.code in keep else replace(f, fix="") for f in of_speed(compiled, ()).findings if f.code in wanted]
    return shown(Diagnosis(tuple(sorted(found, key=lambda f: wanted.index(f.code)))), SPEED_TOKENS)


def limits(now: Situation) -> str:
    """How long the run goes on at most, for the guide."""
    rounds, each = _of(now.rounds, "round"), _of(now.per_round, "prompt")
    ends = [f"after {_of(now.patience, 'round')} without gain"] if 0 < now.patience < now.rounds else []
    ends += [f"when a candidate reaches {now.roofline:g} of the roofline"] if now.roofline else []
    if not (now.patience or now.roofline):
        ends = ["with the first candidate that comes as far as this machine can take it"]
    earlier = f" It ends earlier {' or '.join(ends)}." if ends else ""
    return (
        f"Deadlines: the run asks in at most {rounds} of {each} and has {now.minutes:g} minutes in all. Your writing"
        f" counts, time in which kgen does not run does not.{earlier}\n"
        "A prompt has no deadline of its own: it stays open until it is answered or those minutes are over."
    )


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def pause(run: str, waiting: str) -> str:
    """paused.md. `waiting`: what has still to be written."""
    return (
        f"# kgen waits no longer\n\nNobody reads answers now. Still open: {waiting}.\n\n"
        f"Answers that are written now count when a person goes on with the run: `kgen resume {run}`.\n"
    )


def ending(run: str, outcome: str, why: str, standings: Standings | None = None) -> str:
    """done.md."""
    said = OUTCOMES.get(outcome, "")
    return (
        f"# The run is over: {outcome}\n\n{said} {('Why it ended: ' + why + '.') if why else ''}\n\n"
        + _table(standings or Standings())
        + f"Nothing more will be asked in this folder. `kgen report {run}` shows all of it.\n"
    )


def _table(now: Standings) -> str:
    """All that is right, best first."""
    if not now.places:
        return ""
    rows = [f"| {p.rank} | {p.id[:SHOWN]} | {cell(p.answer.rpartition('/')[2])} | {p.value} |" for p in now.places]
    head = ["| rank | candidate | answer | by |", "|---|---|---|---|"]
    costs = [f"* {line}" for line in now.costs.get(now.places[0].id, ())]
    made = ["", "What the static cost of the best is made of:", "", *costs] if costs else []
    said = f"The best is {_named(now.places[0])}. The run's order: by {now.measure}, least first."
    return "\n".join([said, "", *head, *rows, *made, "", ""])
