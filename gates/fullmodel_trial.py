"""One trial of the full-model gate: which processes run, and how their results become a finding."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgen.contract.op import Op
from kgen.gates import fullmodel_attest as attest
from kgen.gates.contract import DEFECTS
from kgen.gates.fullmodel_plan import Plan, plan
from kgen.gates.fullmodel_rules import Breach, judge
from kgen.gates.fullmodel_sides import Answers, Left, Running, recomposition, start
from kgen.gates.runner.job import Built, LoadSpec
from kgen.model.dims import model_dims
from kgen.model.step import seats
from kgen.ops import REGISTRY
from kgen.records import Status

CANDIDATES_FAULT = ("fault", "crashed", "hung")  # a runner's statuses that the loaded kernels answer for


@dataclass(frozen=True)
class Finding:
    status: Status
    code: str
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One process: which engine, of which dims, on which plan."""

    engine: str  # "stock", "candidate", "off" or "mutant <defect>"
    plan: Plan
    builds: tuple[Built, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.engine} {self.plan.dims}"


class Trial:
    """Judges `artefacts` (one candidate, one arch) and `mutants` of it. Call `run` once."""

    def __init__(
        self,
        op: Op,
        artefacts: Sequence[Built],
        mutants: Sequence[Built],
        device: str,
        seeds: tuple[int, int],
        to_spec: Callable[[Built], LoadSpec],
    ) -> None:
        self.op, self.device, self.seeds, self.to_spec = op, device, seeds, to_spec
        self.artefacts = _by_dims(artefacts)
        self.mutants = {d: _by_dims([m for m in mutants if m.record.defect == d]) for d in DEFECTS}
        self.evidence: dict[str, Any] = {"seeds": {"weights": seeds[0], "tokens": seeds[1]}, "device": device}

    def run(self, pool: ThreadPoolExecutor, running: Running, cache: Path, deadline: float) -> Finding:
        """All processes, then the rules in order. `deadline` is a time.monotonic() value."""
        parts = self.parts()
        if missing := [d for d in DEFECTS if not any(p.engine == f"mutant {d}" for p in parts)]:
            text = f"no mutant with {' or '.join(missing)} was built, so that nothing shows what this gate can see"
            return self._finding(Status.ERROR, "fullmodel.insensitive", text)
        futures: dict[str, Future[Left]] = {}
        for part in parts:
            specs = [self.to_spec(b) for b in part.builds]
            enabled = part.engine != "off"
            futures[part.name] = start(pool, running, part.plan, specs, enabled=enabled, cache=cache, deadline=deadline)
        answers = {p.plan.dims: Answers(p.plan) for p in parts if p.engine == "stock"}
        for known in answers.values():
            known.compute()
        results = {name: future.result() for name, future in futures.items()}
        return self._judge(parts, results, answers)

    def parts(self) -> list[Part]:
        """Stock and candidate for every dims; switched off and mutants for the first dims that has them."""
        parts: list[Part] = []
        for dims, builds in self.artefacts.items():
            full = self._plan(dims, builds, brief=False)
            parts += [Part("stock", full), Part("candidate", full, builds)]
        for dims, builds in list(self.artefacts.items())[:1]:
            parts.append(Part("off", self._plan(dims, builds, brief=True), builds))
        for defect, found in self.mutants.items():
            for dims in [d for d in self.artefacts if d in found][:1]:
                bins = {b.record.problem.tokens for b in self.artefacts[dims]}
                builds = tuple(b for b in found[dims] if b.record.problem.tokens in bins)
                if builds:
                    parts.append(Part(f"mutant {defect}", self._plan(dims, builds, brief=True), builds))
        return parts

    def _plan(self, dims: str, builds: Sequence[Built], brief: bool) -> Plan:
        bins = {b.record.problem.tokens for b in builds}
        arch = builds[0].record.problem.arch
        return plan(self.op, dims, arch, self.device, bins, self.seeds, brief)

    def _judge(self, parts: Sequence[Part], left: dict[str, Left], answers: dict[str, Answers]) -> Finding:
        for check in (self._crashes, self._complete, self._weights, self._blind):
            if finding := check(parts, left, answers):
                return finding
        breaches = self._launches(parts, left)
        for part in (p for p in parts if p.engine == "candidate"):
            breaches += self._numbers(part, left, answers)
        missed = [text for p in parts if p.engine.startswith("mutant") for text in self._mutant(p, left, answers)]
        if breaches:
            return self._finding(Status.FAIL, breaches[0].code, "; ".join(b.message for b in breaches[:3]))
        if missed:
            return self._finding(Status.ERROR, "fullmodel.insensitive", "; ".join(missed))
        return self._finding(Status.PASS, "fullmodel.pass", self._praise(parts))

    def _crashes(self, parts: Sequence[Part], left: dict[str, Left], _: Any) -> Finding | None:
        """The other processes first: where stock does not run, the candidate is not to blame."""
        for part in sorted(parts, key=lambda p: p.engine == "candidate"):
            got = left[part.name]
            if got.status == "done":
                continue
            text = f"{part.name}: {got.message}"
            if part.engine.startswith("mutant"):
                return self._finding(Status.ERROR, "fullmodel.insensitive", f"could not be tried: {text}")
            guilty = part.engine == "candidate" and got.status in CANDIDATES_FAULT
            return self._finding(Status.FAIL if guilty else Status.ERROR, "fullmodel.crash", text)
        return None

    def _complete(self, parts: Sequence[Part], left: dict[str, Left], _: Any) -> Finding | None:
        """A batch that left nothing in some mode would be judged by nobody."""
        for part in parts:
            wanted = ["eager", "graph"] if part.plan.graph else ["eager"]
            for batch in part.plan.batches:
                if [r["mode"] for r in left[part.name].of(batch)] != wanted:
                    text = f"{part.name}: {batch.name} left no record of {' and '.join(wanted)}"
                    return self._finding(Status.ERROR, "fullmodel.crash", text)
        return None

    def _weights(self, parts: Sequence[Part], left: dict[str, Left], answers: dict[str, Answers]) -> Finding | None:
        for part in parts:
            if left[part.name].weights != answers[part.plan.dims].weights:
                text = f"{part.name} drew other weights than the judge from the same seed"
                return self._finding(Status.ERROR, "fullmodel.crash", text)
        return None

    def _blind(self, parts: Sequence[Part], left: dict[str, Left], _: Any) -> Finding | None:
        """A profiler that shows no kernel at all, not even stock's, attests nothing."""
        for part in parts:
            rounds = [r["profiled"] for r in left[part.name].records if r["mode"] == "graph"]
            if any(not any(counts for counts in shown) for shown in rounds):
                text = f"{part.name}: torch.profiler saw no kernel at all in graph replays; is CUPTI usable here?"
                return self._finding(Status.ERROR, "fullmodel.attestation", text)
        return None

    def _launches(self, parts: Sequence[Part], left: dict[str, Left]) -> list[Breach]:
        lines: list[str] = []
        shown = self.evidence.setdefault("attestation", {})
        for part in parts:
            stock = left[f"stock {part.plan.dims}"]
            kernels = {n.kernel for b in self.artefacts[part.plan.dims] for n in b.record.launches}
            for batch in part.plan.batches:
                mine = left[part.name].of(batch)
                if part.engine == "candidate":
                    per_step = self._per_step(part, batch.tokens)
                    lines += attest.candidate_faults(batch, mine, per_step)
                    shown[f"{part.plan.dims} {batch.name}"] = attest.summary(per_step, batch, mine)
                if part.engine in ("stock", "off"):
                    lines += attest.stock_faults(f"{part.name} {batch.name}", mine, kernels)
                if part.engine == "off":
                    lines += attest.trace_faults(f"{part.plan.dims} {batch.name}", mine, stock.of(batch))
                    lines += attest.token_faults(f"{part.plan.dims} {batch.name}", mine, stock.of(batch))
        return [Breach("fullmodel.attestation", line) for line in lines]

    def _per_step(self, part: Part, tokens: int) -> Counter[str]:
        used = seats(model_dims(part.plan.dims), tokens, part.plan.arch, REGISTRY)
        return attest.expected_per_step(used, (b.record for b in part.builds))

    def _numbers(self, part: Part, left: dict[str, Left], answers: dict[str, Answers]) -> list[Breach]:
        dims, known = part.plan.dims, answers[part.plan.dims]
        stock, mine = left[f"stock {dims}"], left[part.name]
        batches = part.plan.batches
        breaches, numbers = judge(known.side(mine, batches, True), known.side(stock, batches, True))
        numbers["recomposed"] = recomposition(part.plan, mine, stock)
        self.evidence.setdefault("dims", {})[dims] = numbers
        return [Breach(b.code, f"{dims} {b.message}") for b in breaches]

    def _mutant(self, part: Part, left: dict[str, Left], answers: dict[str, Answers]) -> list[str]:
        """Nothing when the numbers refuse it."""
        known, batches = answers[part.plan.dims], part.plan.batches
        stock = known.side(left[f"stock {part.plan.dims}"], batches, False)
        breaches, numbers = judge(known.side(left[part.name], batches, False), stock)
        refused = [b.message for b in breaches]
        self.evidence.setdefault("mutants", {})[part.engine.removeprefix("mutant ")] = {
            "refused": bool(refused),
            "dims": part.plan.dims,
            "breaches": len(refused),
            "first": refused[0] if refused else "",
            "modes": numbers["modes"],
        }
        return [] if refused else [f"{part.name} passed: this gate would not see such a fault"]

    def _praise(self, parts: Sequence[Part]) -> str:
        ratios = [m["hidden"] for d in self.evidence["dims"].values() for m in d["modes"].values()]
        worst = max(ratios, key=lambda r: float(r[0]))
        batches = sum(len(p.plan.batches) for p in parts if p.engine == "candidate")
        return (
            f"{batches} batches; hidden rows {worst[0]:.3f}x as far from float64 as stock's"
            f" (95 % {worst[1]:.3f} to {worst[2]:.3f}); launches as built; mutants refused"
        )

    def _finding(self, status: Status, code: str, message: str) -> Finding:
        return Finding(status, code, message, self.evidence)


def _by_dims(builds: Sequence[Built]) -> dict[str, tuple[Built, ...]]:
    found: dict[str, list[Built]] = {}
    for build in builds:
        found.setdefault(build.record.problem.dims, []).append(build)
    return {dims: tuple(items) for dims, items in found.items()}
