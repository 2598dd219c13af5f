"""Problem, candidate, gate result, verdict."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kgen.records.codec import sha256_text

GATES = ("compile", "unit-numeric", "full-model-eval", "perf-sweep")


class Status(enum.StrEnum):
    PASS = "pass"
    FAIL = "fail"  # the candidate's fault
    ERROR = "error"  # ours or the machine's: retryable
    SKIP = "skip"  # could not run here; the message says why. Never counts as a pass


@dataclass(frozen=True)
class Problem:
    """An op with concrete dims (by name), a token bin, an architecture and its other axes."""

    SCHEMA: ClassVar[str] = "kgen.problem/1"
    op: str
    dims: str
    tokens: int
    arch: str
    axes: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`<op>/<dims>/t<tokens>/<arch>`; other axes follow as `name=value`."""
        parts = [self.op, self.dims, f"t{self.tokens}", self.arch]
        return "/".join(parts + [f"{k}={v}" for k, v in sorted(self.axes.items())])


@dataclass(frozen=True)
class Origin:
    """Where a candidate came from: the proposer and what it wants remembered (seed, parameters, prompt hash, ...)."""

    SCHEMA: ClassVar[str] = "kgen.origin/1"
    proposer: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """One Python source file that a proposer wrote, for one op."""

    SCHEMA: ClassVar[str] = "kgen.candidate/1"
    op: str
    source: str
    origin: Origin

    @property
    def id(self) -> str:
        """sha256 of the op's name and exactly the source text."""
        return sha256_text(f"{self.op}\0{self.source}")


@dataclass(frozen=True)
class GateResult:
    """What one gate found. `code` is stable (`compile.syntax`, `numeric.error`, ...); `evidence` is JSON data."""

    SCHEMA: ClassVar[str] = "kgen.gate-result/1"
    gate: str
    status: Status
    code: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    contract: int = 1  # gate-contract version: raised when a rule or a tolerance changes

    @property
    def passed(self) -> bool:
        return self.status is Status.PASS

    @property
    def interpreted(self) -> bool:
        """Whether it comes from the PTX interpreter: it may stage a candidate, never promote it."""
        return self.evidence.get("device") == "ptx"


@dataclass(frozen=True)
class Verdict:
    """The ordered gate results of one candidate."""

    SCHEMA: ClassVar[str] = "kgen.verdict/1"
    candidate: str
    results: tuple[GateResult, ...]

    def result(self, gate: str) -> GateResult | None:
        return next((r for r in self.results if r.gate == gate), None)

    @property
    def failed(self) -> GateResult | None:
        """The first result that is a fail or an error."""
        return next((r for r in self.results if r.status in (Status.FAIL, Status.ERROR)), None)

    @property
    def staged(self) -> bool:
        """Everything that can be checked without a GPU passed, nothing failed."""
        compiled = self.result("compile")
        return self.failed is None and compiled is not None and compiled.passed

    @property
    def promotable(self) -> bool:
        """All four gates passed, on a GPU where they need one; a skip is not a pass."""
        results = [self.result(gate) for gate in GATES]
        return all(r is not None and r.passed and not r.interpreted for r in results)
