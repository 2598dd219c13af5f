"""A finding and an ordered set of them. Not covered: where findings come from, and how much of them is shown."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

COMPILE, NUMERIC, INTERPRETER, PERF = "compile", "numeric", "interpreter", "perf"


@dataclass(frozen=True)
class Finding:
    """`priority`: 0 is said first. `text` is one line and may quote foreign words; `fix` is ours, "" where unknown."""

    SCHEMA: ClassVar[str] = "kgen.finding/1"
    kind: str
    priority: int
    code: str
    text: str
    fix: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"[{self.code}] {self.text}" + (f" Fix: {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class Diagnosis:
    """Findings, most informative first; equal ones once."""

    SCHEMA: ClassVar[str] = "kgen.diagnosis/1"
    findings: tuple[Finding, ...] = ()


def ordered(findings: Iterable[Finding]) -> Diagnosis:
    """By priority, then as given; a finding with the same line as an earlier one is left out."""
    once: dict[str, Finding] = {}
    for finding in findings:
        once.setdefault(finding.line, finding)
    return Diagnosis(tuple(sorted(once.values(), key=lambda f: f.priority)))
