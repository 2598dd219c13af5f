"""Proposal requests and verdicts for tests, over a real op contract."""

from pathlib import Path
from typing import Any

from kgen.ops import REGISTRY
from kgen.proposers import ProposalRequest
from kgen.records import Candidate, GateResult, Origin, Status, Verdict

ARCHS = ("sm_90a", "sm_103a")


def request(run: Path, op: str = "moe_shared", **changes: Any) -> ProposalRequest:
    contract = REGISTRY.get(op)
    problems = tuple(contract.problem(d, t, a) for a in ARCHS for d in contract.dims for t in contract.pack.quick_bins)
    given = {"op": contract, "problems": problems, "archs": ARCHS, "run": run, "deadline_s": 20.0, **changes}
    return ProposalRequest(**given)


def attempt(source: str, *results: GateResult, op: str = "moe_shared") -> tuple[Candidate, Verdict]:
    candidate = Candidate(op, source, Origin("search"))
    return candidate, Verdict(candidate.id, results)


def failing(message: str, code: str = "compile.trace", gate: str = "compile", **evidence: Any) -> GateResult:
    return GateResult(gate, Status.FAIL, code, message, evidence)


def passing(gate: str = "compile", **evidence: Any) -> GateResult:
    return GateResult(gate, Status.PASS, f"{gate}.ok", "ok", evidence)
