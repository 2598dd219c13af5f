"""Valid promotion cases with a few bytes as objects, and kernel sets made of them by the real `promote`.

    case = make_case("text of the kernel")            # a Case that promotes
    fill(tmp_path / "set", case)                      # SetPath of a set that holds it

Imports no torch, so that a process can be started, and killed, many times.
"""

from collections.abc import Mapping
from pathlib import Path

from kgen.promotion import Case, Current, promote
from kgen.records import (
    GATES,
    BuildRecord,
    Candidate,
    Compiler,
    Environment,
    Evidence,
    GateResult,
    KernelFacts,
    Launch,
    Origin,
    PerfPoint,
    Problem,
    Promotion,
    SignedEvidence,
    Status,
    Verdict,
    sha256_bytes,
)
from kgen.records.envelope import label
from kgen.store.kernelset import compress
from kgen.store.paths import SetPath
from kgen.store.signing import sign

OP = "moe_shared"
DIMS = "nano"
ARCH = "sm_90a"
KEY = b"k" * 32
CONTRACT = "c" * 64
CURRENT = Current({OP: CONTRACT}, 1)
COMPILER = Compiler("4.8.1", "cu12")
WIN, TIE, LEFT = 0.9, 1.02, 1.2


def problem(tokens: int = 1, op: str = OP, dims: str = DIMS, arch: str = ARCH) -> Problem:
    return Problem(op, dims, tokens, arch)


def environment(arch: str = ARCH) -> Environment:
    return Environment("NVIDIA H200", arch, 132, 50 << 20, 141 << 30, "580", "12.9", "2.13", "3.11", "0.1.14", "cu12")


def point(of: Problem, ratio_high: float, tokens: int = 0) -> PerfPoint:
    return PerfPoint(
        problem=of.key,
        tokens=tokens or of.tokens,
        column="graph",
        timer="cuda events",
        candidate_us=10.0 * ratio_high,
        baselines_us={"stock": 10.0},
        best_baseline="stock",
        ratio=ratio_high - 0.01,
        ratio_low=ratio_high - 0.02,
        ratio_high=ratio_high,
        roofline=0.7,
        floor_us=7.0,
        samples=100,
        label=label(ratio_high),
    )


def build(candidate: Candidate, of: Problem, data: bytes, compiler: Compiler = COMPILER) -> BuildRecord:
    kernel = f"kernel_{candidate.id[:8]}"
    return BuildRecord(
        candidate=candidate.id,
        problem=of,
        function="kgen_entry",
        object_sha256=sha256_bytes(data),
        object_bytes=len(data),
        cubin_sha256=sha256_bytes(b"cubin" + data),
        kernels=(KernelFacts(kernel, 32, 0, 0, 256, sha256_bytes(b"code" + data)),),
        launches=(Launch(kernel, (132, 1, 1), (256, 1, 1), (1, 1, 1), 0),),
        workspaces=(),
        compiler=compiler,
        isolation="bwrap/1",
        compile_seconds=0.5,
    )


def results(gate_contract: int = 1) -> tuple[GateResult, ...]:
    return tuple(GateResult(gate, Status.PASS, f"{gate}.ok", "passed", contract=gate_contract) for gate in GATES)


def make_case(
    text: str = "kernel 1",
    ratios: Mapping[int, float] | None = None,
    key: bytes = KEY,
    op: str = OP,
    dims: str = DIMS,
    arch: str = ARCH,
    op_contract: str = CONTRACT,
    gate_contract: int = 1,
    objects: Mapping[int, bytes] | None = None,
    raw: bytes = b"samples",
    run: str = "20260101T000000Z-moe_shared-abc123",
) -> Case:
    """A case over the bins of `ratios` (bin -> upper bound of the ratio); `key` b"" leaves the evidence unsigned."""
    ratios = {1: WIN, 8: TIE} if ratios is None else ratios
    candidate = Candidate(op, f"# {text}\n", Origin("test"))
    problems = {t: problem(t, op, dims, arch) for t in ratios}
    data = {t: (objects or {}).get(t, f"object of {text} at {t}".encode()) for t in ratios}
    raw = compress(raw) if raw else b""
    evidence = Evidence(
        op=op,
        candidate=candidate.id,
        op_contract=op_contract,
        gate_contract=gate_contract,
        arch=arch,
        run=run,
        objects={problems[t].key: sha256_bytes(data[t]) for t in ratios},
        environment=environment(arch),
        results=results(gate_contract)[1:],
        points=tuple(point(problems[t], high) for t, high in ratios.items()),
        seeds={"numeric": 7},
        started="2026-01-01T00:00:00Z",
        finished="2026-01-01T00:01:00Z",
        raw_sha256=sha256_bytes(raw) if raw else "",
    )
    return Case(
        candidate=candidate,
        verdict=Verdict(candidate.id, results(gate_contract)),
        evidence=sign(evidence, key) if key else SignedEvidence(evidence, run, ""),
        builds=tuple(build(candidate, problems[t], data[t]) for t in ratios),
        objects={sha256_bytes(d): d for d in data.values()},
        raw=raw,
    )


def fill(root: Path, *cases: Case, current: Current = CURRENT, key: bytes = KEY) -> SetPath:
    """A set at `root` with these cases promoted in order."""
    target = SetPath(root)
    for case in cases:
        promote(target, case, current, key, trust=not case.evidence.hmac)
    return target


def promoted(target: SetPath, case: Case) -> Promotion:
    """Promote under the usual rules."""
    return promote(target, case, CURRENT, KEY)
