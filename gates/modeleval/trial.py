"""One trial of the model evaluation: which processes run, and how what they leave becomes a finding.

Order of judgement: processes that died, records that are missing, weights that differ, a blind profiler; launches;
numbers; what could not be judged; mutants. A fault of the candidate outranks what could not be judged.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kgen.gates.contract import DEFECTS
from kgen.gates.modeleval import attest, limits, rules_rows, rules_tokens
from kgen.gates.modeleval import exercise as kinds
from kgen.gates.modeleval.breach import Breach, Finding, ordered
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import Exercise
from kgen.gates.modeleval.plan import SMALL, Plan
from kgen.gates.modeleval.rules_rows import Key, Measured
from kgen.gates.modeleval.rules_tokens import Mark
from kgen.gates.modeleval.sides import (
    CANDIDATE,
    FLOAT64,
    LATE,
    MUTANT,
    OFF,
    STOCK,
    Left,
    Part,
    Starter,
    exercises_of,
    gaps,
    seconds,
    strangers,
    unreached,
)
from kgen.gates.runner.job import Built
from kgen.records import Status

CANDIDATES_FAULT = ("fault", "crashed", "hung")  # a runner's statuses that the loaded kernels answer for
CRASH, INCOMPLETE = "fullmodel.crash", "fullmodel.incomplete"
ATTESTATION, INSENSITIVE = "fullmodel.attestation", "fullmodel.insensitive"
PASSED = "fullmodel.pass"
SHOWN = 3  # breaches in a message


@dataclass(frozen=True)
class Verdict:
    status: Status
    code: str
    message: str


@dataclass
class Trial:
    """Judges `artefacts` (one candidate of each op, one arch) and `mutants` of them. Call `run` once."""

    ops: tuple[str, ...]
    artefacts: Sequence[Built]
    mutants: Sequence[Built]
    plan: Plan
    census: Census
    starter: Starter
    mark: Mark
    trained: bool  # whether there are weights of the model that answers
    evidence: dict[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None  # hears of processes as they end
    _measured: dict[str, dict[Key, Measured]] = field(default_factory=dict)

    def run(self, pool: ThreadPoolExecutor) -> Verdict:
        if homeless := [op for op in self.ops if not self._seated(op)]:
            text = "it cannot be evaluated, and so not promoted" if len(homeless) == 1 else "they cannot be evaluated"
            line = f"no decode model has a seat for the builds of {', '.join(homeless)}: {text}"
            return Verdict(Status.ERROR, INCOMPLETE, f"{line} ({_some(self.plan.unseated)})")
        parts = self.parts()
        if missing := self._unplanted(parts):
            return Verdict(Status.ERROR, INSENSITIVE, f"{missing}, so that nothing shows what this gate can see")
        longest_first = sorted(parts, key=_rank)
        futures = {part.name: self.starter.start(pool, part) for part in longest_first}
        for name, future in futures.items():
            future.add_done_callback(partial(self._finished, name))
        left = {name: future.result() for name, future in futures.items()}
        self.evidence["not_run"] = dict(self.plan.not_run)
        self.evidence["seconds"] = {name: seconds(got) for name, got in left.items()}
        began = time.monotonic()
        verdict = self._judge(parts, left)
        self.evidence["seconds"]["judge"] = round(time.monotonic() - began, 1)
        return verdict

    def _finished(self, name: str, future: "Future[Left]") -> None:
        """Told at once, whatever else still runs."""
        if future.exception() is None:
            got = future.result()
            words = "" if got.status == "done" else f": {got.status}, {got.message}"
            self.say(f"{name}: {got.seconds:.0f} s{words}")

    def _seated(self, op: str) -> bool:
        """Whether any build of an op sits in some exercise."""
        return any(b.record.problem.op == op and b.record.problem.key not in self.plan.unseated for b in self.artefacts)

    def parts(self) -> list[Part]:
        """Float64, stock, candidate and mutants of every model; switched off where there are seats first."""
        found: list[Part] = []
        models = {m: e for m, e in self.plan.models.items() if e and (m != SMALL or self.trained)}
        for model, exercises in models.items():
            builds = self._fitting(self.artefacts, exercises)
            sides = ((FLOAT64, ()), (STOCK, ()), (CANDIDATE, builds))
            found += [Part(kind, model, exercises_of(kind, exercises), own) for kind, own in sides]
        for model, exercises in list(models.items())[:1]:
            found.append(Part(OFF, model, exercises_of(OFF, exercises), self._fitting(self.artefacts, exercises)))
        for op in self.ops:
            for defect in DEFECTS:
                mine = [m for m in self.mutants if m.record.problem.op == op and m.record.defect == defect]
                found += self._mutant(f"{op} {defect}", mine, models)
        return [part for part in found if part.exercises]

    def _mutant(self, label: str, mine: Sequence[Built], models: Mapping[str, tuple[Exercise, ...]]) -> list[Part]:
        """In each model where these builds sit in a brief exercise; in one mode, since a fault is in both.

        The candidates of other ops sit beside it, as they do beside the candidate itself.
        """
        found = []
        op = label.split()[0]
        others = [b for b in self.artefacts if b.record.problem.op != op]
        for model, exercises in models.items():
            keys = {m.record.problem.key for m in mine}
            seated = [e for e in exercises_of(MUTANT, exercises) if self.census.seats(e, keys)]
            brief = tuple(replace(e, modes=e.modes[-1:]) for e in seated)
            if brief:
                found.append(Part(MUTANT, model, brief, self._fitting([*mine, *others], brief), label))
        return found

    def _fitting(self, builds: Iterable[Built], exercises: Iterable[Exercise]) -> tuple[Built, ...]:
        """The builds that sit somewhere in these exercises."""
        known = {b.record.problem.key: b for b in builds}
        used = {key for e in exercises for key in self.census.seats(e, set(known))}
        return tuple(b for key, b in known.items() if key in used)

    def _unplanted(self, parts: Sequence[Part]) -> str:
        have = {p.label for p in parts if p.kind == MUTANT}
        missing = [f"{op} {defect}" for op in self.ops for defect in DEFECTS if f"{op} {defect}" not in have]
        return f"no mutant of {' or '.join(missing)} was built" if missing else ""

    def _judge(self, parts: Sequence[Part], left: dict[str, Left]) -> Verdict:
        if verdict := self._crashes(parts, left):
            return verdict
        if lines := [line for part in parts for line in unreached(part, left[part.name])]:
            self.evidence["not_reached"] = lines
            return Verdict(Status.ERROR, INCOMPLETE, f"out of time: {_some(lines)}; run it again with more of it")
        if lines := [line for part in parts for line in gaps(part, left[part.name])] + strangers(parts, left):
            return Verdict(Status.ERROR, INCOMPLETE, _some(lines))
        if lines := [line for part in parts if part.kind != MUTANT for line in attest.blind(part, left[part.name])]:
            return Verdict(Status.ERROR, ATTESTATION, f"{lines[0]}; is CUPTI usable here?")
        launches = self._launches(parts, left)
        self.evidence["attestation"] = attest.summary(parts, left, self.census)
        findings = [self._numbers(part, left) for part in parts if part.kind == CANDIDATE]
        breaches = ordered(b for finding in findings for b in finding.breaches)
        missed = self._let_through([p for p in parts if p.kind == MUTANT], left)
        if launches:
            return Verdict(Status.FAIL, ATTESTATION, _some(launches))
        if breaches:
            return Verdict(Status.FAIL, breaches[0].code, _some([b.message for b in breaches]))
        unjudged = [line for finding in findings for line in finding.unjudged] + self._absent()
        if unjudged:
            self.evidence["unjudged"] = unjudged
            return Verdict(Status.ERROR, INCOMPLETE, _some(unjudged))
        praise = self._praise(parts)
        if missed:
            self.evidence |= {"insensitive": missed, "otherwise": praise}
            return Verdict(Status.ERROR, INSENSITIVE, "; ".join(missed.values()))
        return Verdict(Status.PASS, PASSED, praise)

    def _crashes(self, parts: Sequence[Part], left: Mapping[str, Left]) -> Verdict | None:
        """The other processes first: where stock does not run, the candidate is not to blame."""
        for part in sorted(parts, key=lambda p: p.kind == CANDIDATE):
            got = left[part.name]
            if got.status in ("done", LATE):
                continue
            text = f"{part.name}: {got.message}"
            if part.kind == MUTANT:
                return Verdict(Status.ERROR, INSENSITIVE, f"could not be tried: {text}")
            guilty = part.kind == CANDIDATE and got.status in CANDIDATES_FAULT
            return Verdict(Status.FAIL if guilty else Status.ERROR, CRASH, text)
        return None

    def _absent(self) -> list[str]:
        """What the claim of a pass would need and this plan does not have."""
        lines = [] if SMALL in self.plan.models else ["the small model has no builds: its tasks were not measured"]
        if SMALL in self.plan.models and not self.trained:
            lines.append(f"no trained weights at {self.starter.checkpoint}: the tasks were not measured")
        if self.plan.unseated:
            lines.append(f"built, but in no seat of a decode model: {_some(self.plan.unseated)}")
        return lines

    def _launches(self, parts: Sequence[Part], left: Mapping[str, Left]) -> list[str]:
        kernels = {launch.kernel for b in self.artefacts for launch in b.record.launches}
        lines: list[str] = []
        for part in (p for p in parts if p.kind in (STOCK, CANDIDATE, OFF)):
            lines += attest.faults(part, left[part.name], self.census)
            if part.kind in (STOCK, OFF):
                lines += attest.stray(part, left[part.name], kernels)
            if part.kind == OFF:
                lines += attest.as_stock(part, left[part.name], left[f"{STOCK} {part.model}"])
        return lines

    def _numbers(self, part: Part, left: Mapping[str, Left]) -> Finding:
        """Every rule on a candidate's part; the numbers go into the evidence."""
        found = {"rows": self._rows(part, left)} if f"{FLOAT64} {part.model}" in left else {}
        mine, stock = left[part.name], left[f"{STOCK} {part.model}"]
        for exercise in part.exercises:
            for mode in exercise.modes:
                judged = self._tokens(exercise, mode, mine, stock, left.get(f"{FLOAT64} {part.model}"))
                if judged is not None:
                    found[f"{exercise.name} {mode}"] = judged
        self.evidence.setdefault("models", {})[part.model] = {k: f.numbers for k, f in found.items() if f.numbers}
        breaches = tuple(Breach(b.code, b.message) for f in found.values() for b in f.breaches)
        return Finding(breaches, {}, tuple(line for f in found.values() for line in f.unjudged))

    def _rows(self, part: Part, left: Mapping[str, Left]) -> Finding:
        exact, device = left[f"{FLOAT64} {part.model}"], self.starter.device
        stock = f"{STOCK} {part.model}"
        if stock not in self._measured:
            every = exercises_of(FLOAT64, self.plan.models[part.model])
            self._measured[stock] = rules_rows.measure(every, left[stock], exact, device)
        tested = rules_rows.measure(part.exercises, left[part.name], exact, device)
        return rules_rows.judge(part.exercises, tested, self._measured[stock])

    def _tokens(self, exercise: Exercise, mode: str, mine: Left, stock: Left, exact: Left | None) -> Finding | None:
        seeds, rules = self.starter.seeds, rules_tokens
        judges: Mapping[str, Callable[[], Finding]] = {
            kinds.FREE: lambda: rules.free(exercise, mode, mine, stock, exact),
            kinds.VERIFY: lambda: rules.verify(exercise, mode, mine, stock),
            kinds.TASKS: lambda: rules.tasks(exercise, mode, mine, stock, seeds, self.mark, self._loss()),
            kinds.LONG: lambda: rules.long(exercise, mode, mine, stock, seeds, self.mark),
            kinds.CONSTRAINED: lambda: rules.constrained(exercise, mode, mine, stock, seeds),
            kinds.SAMPLING: lambda: rules.sampling(exercise, mode, mine, stock),
        }
        return judges[exercise.kind]() if exercise.kind in judges else None

    def _loss(self) -> float:
        return limits.ACCURACY_LOSS["cpu" if self.starter.device == "cpu" else "cuda"]

    def _let_through(self, mutants: Sequence[Part], left: Mapping[str, Left]) -> dict[str, str]:
        """By op: mutants that the numbers of no model refuse. A candidate with such a fault would be promoted."""
        missed: dict[str, str] = {}
        shown = self.evidence.setdefault("mutants", {})
        for label in dict.fromkeys(p.label for p in mutants):
            tried = {p.model: self._rows(p, left).breaches for p in mutants if p.label == label}
            model, breaches = next(((m, b) for m, b in tried.items() if b), next(iter(tried.items())))
            shown[label] = {
                "refused": bool(breaches),
                "model": model if breaches else ", ".join(tried),
                "code": breaches[0].code if breaches else "",
                "first": breaches[0].message if breaches else "",
                "breaches": len(breaches),
                "passed_in": [m for m, b in tried.items() if not b],
            }
            if not breaches:
                text = f"{MUTANT} {label} passed in {' and '.join(tried)}: this gate would not see such a fault"
                missed[label.split()[0]] = text
        return missed

    def _praise(self, parts: Sequence[Part]) -> str:
        ran = sum(len(p.exercises) for p in parts if p.kind == CANDIDATE)
        modes = [
            m for model in self.evidence["models"].values() for m in model.get("rows", {}).get("modes", {}).values()
        ]
        worst = max((m["hidden"] for m in modes), default=None)
        text = f"{ran} exercises"
        if worst is not None:
            text += (
                f"; hidden rows {worst[0]:.3f}x as far from float64 as stock's (95 % {worst[1]:.3f} to {worst[2]:.3f})"
            )
        text += "; launches as built; mutants refused"
        if self.evidence["not_run"]:
            text += f"; not run: {', '.join(self.evidence['not_run'])}"
        return text


def _rank(part: Part) -> int:
    """Longest first, by the estimate in plan.py: what starts last should be short."""
    if part.kind in (OFF, MUTANT) or (part.model == SMALL and part.kind == FLOAT64):
        return 3
    return 0 if part.model == SMALL else 1 if part.kind == FLOAT64 else 2


def _some(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more
