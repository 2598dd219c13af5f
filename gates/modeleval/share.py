"""What one evaluation of several ops says of each of them.

A pass is a pass of every op. Where all rules hold and only mutants of some ops were let through, those ops stay without
a verdict, and the others pass: of each of them the numbers are right and its own mutants were refused.
"""

from dataclasses import replace
from typing import Any

from kgen.gates.modeleval.trial import INSENSITIVE, PASSED
from kgen.records import GateResult, Status


def of(result: GateResult, op: str) -> GateResult:
    """The result for one op, with its own mutants alone as evidence; anything but a pass is as it was."""
    blind = result.evidence.get("insensitive")  # absent where it ended before everything else was judged
    passed = result.passed or (result.code == INSENSITIVE and blind is not None and op not in blind)
    if not passed:
        return result
    message = result.message if result.passed else str(result.evidence["otherwise"])
    evidence: dict[str, Any] = {k: v for k, v in result.evidence.items() if k not in ("insensitive", "otherwise")}
    evidence["mutants"] = {k: v for k, v in evidence.get("mutants", {}).items() if k.split()[0] == op}
    return replace(result, status=Status.PASS, code=PASSED, message=message, evidence=evidence)
