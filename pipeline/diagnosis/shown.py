"""What of a diagnosis is shown: the most informative findings first, up to a number of tokens.

A token is taken for three characters, which is fewer than any common tokenizer needs for such text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kgen.diagnosis import compile_errors, numeric, perf, waits
from kgen.diagnosis.findings import Diagnosis, Finding, ordered
from kgen.records import GateResult, PerfPoint, Verdict

MAX_TOKENS = 2_000
CHARACTERS = 3  # a token
MAX_LINE = 700  # characters of one finding


def tokens(text: str) -> int:
    """Of UTF-8 bytes: a character that is no ASCII may take several tokens."""
    return -(-len(text.encode("utf-8", "replace")) // CHARACTERS)


def of_failure(result: GateResult) -> Diagnosis:
    """Of a gate that refused a candidate."""
    if result.gate == "unit-numeric":
        return ordered(numeric.findings(result))
    if result.gate == "compile":
        lines = result.message.splitlines()
        several = result.code.startswith("screen.") or all(compile_errors.NO_ATTRIBUTE.search(line) for line in lines)
        split = len(lines) > 1 and several
        return ordered(compile_errors.findings([(result.code, m) for m in (lines if split else [result.message])]))
    return ordered([Finding(result.gate, 0, result.code, " ".join(result.message.split())[:MAX_LINE])])


def of_verdict(verdict: Verdict) -> Diagnosis:
    """Of the gate that refused it; also that its blocks wait for one another, where a later gate than compile did."""
    failed, compiled = verdict.failed, verdict.result("compile")
    if failed is None:
        return Diagnosis()
    problems: Any = compiled.evidence.get("problems") if compiled is not None and compiled.passed else None
    more = waits.findings(problems) if isinstance(problems, Mapping) else []
    return ordered([*of_failure(failed).findings, *more])


def of_speed(compiled: GateResult | None, points: Sequence[PerfPoint]) -> Diagnosis:
    """Of a candidate that is right."""
    problems: Any = compiled.evidence.get("problems") if compiled else None
    return ordered(perf.findings(problems if isinstance(problems, Mapping) else {}, points))


def shown(diagnosis: Diagnosis, limit: int = MAX_TOKENS) -> str:
    """As many whole lines as fit into `limit` tokens, in order; the last line says how many do not."""
    lines = [_cut(" ".join(f.line.split())) for f in diagnosis.findings]
    kept: list[str] = []
    for number, line in enumerate(lines):
        left = len(lines) - number - 1
        more = f"({left + 1} more findings)"
        room = limit if not left else limit - tokens(more) - 1
        if tokens("\n".join([*kept, line])) > room:
            return "\n".join([*kept, more]) if tokens("\n".join([*kept, more])) <= limit else "\n".join(kept)
        kept.append(line)
    return "\n".join(kept)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 4] + " ..."
