"""Evidence: what a GPU host found, bound by hashes to what was run there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kgen.records.codec import OPTIONAL
from kgen.records.core import GateResult


@dataclass(frozen=True)
class Environment:
    """The machine a gate ran on. Clocks in MHz, memory in bytes, power in W; -1 where unknown."""

    SCHEMA: ClassVar[str] = "kgen.environment/1"
    gpu: str
    arch: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    driver: str
    cuda: str
    torch: str
    python: str
    tvm_ffi: str
    runtime_flavour: str  # cu12 or cu13: the CuTe DSL runtime library that launched
    sm_clock_mhz: int = -1
    memory_clock_mhz: int = -1
    power_limit_w: int = -1


@dataclass(frozen=True)
class PerfPoint:
    """One timed point. Times in µs; `ratio` is candidate / best baseline, with its 95 % bootstrap interval."""

    SCHEMA: ClassVar[str] = "kgen.perf-point/1"
    problem: str  # Problem.key
    tokens: int  # true count; smaller than the bin when padded
    column: str  # "graph", "chained" or "cold"
    timer: str
    candidate_us: float
    baselines_us: Mapping[str, float]
    best_baseline: str
    ratio: float
    ratio_low: float
    ratio_high: float
    roofline: float  # floor time (bytes / plain-read rate) over candidate time
    floor_us: float
    samples: int
    label: str  # "win", "tie" or "left"
    scenario: str = field(default="", metadata=OPTIONAL)  # of the op's scenarios; "": typical inputs


@dataclass(frozen=True)
class Evidence:
    """The results of the GPU gates for one candidate on one machine, with everything needed to bind and repeat them."""

    SCHEMA: ClassVar[str] = "kgen.evidence/1"
    op: str
    candidate: str
    op_contract: str  # sha256 of the op contract
    gate_contract: int
    arch: str
    run: str
    objects: Mapping[str, str]  # problem key -> object sha256, exactly what was loaded
    environment: Environment
    results: tuple[GateResult, ...]
    points: tuple[PerfPoint, ...]
    seeds: Mapping[str, int]
    started: str  # UTC, ISO 8601
    finished: str
    raw_sha256: str = ""  # of the compressed raw samples beside it
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SignedEvidence:
    """Evidence plus a HMAC-SHA256 under the one-time key of the run whose kit produced it ("" when self-reported)."""

    SCHEMA: ClassVar[str] = "kgen.signed-evidence/1"
    evidence: Evidence
    run: str
    hmac: str
