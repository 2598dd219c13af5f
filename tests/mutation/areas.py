"""What is mutated, by area of judgement, and the tests that may kill."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

AREAS: dict[str, tuple[str, ...]] = {
    "numeric": (
        "gates/judge.py",
        "pipeline/contract/rules.py",
        "pipeline/contract/tolerance.py",
        "pipeline/contract/selftest.py",
        "gates/numeric.py",
    ),
    "perf": ("gates/perf_judge.py", "gates/statistics.py", "gates/perf.py", "gates/timing.py"),
    "promotion": (
        *(f"pipeline/promotion/{n}.py" for n in ("case", "promote", "freshness", "champions", "gather", "verify")),
        "gates/ingest.py",
    ),
    "attestation": tuple(
        f"gates/modeleval/{name}.py"
        for name in (
            "attest",
            "census",
            "breach",
            "trial",
            "share",
            "rules_rows",
            "rules_tokens",
            "paired",
            "distance",
            "divergence",
        )
    ),
    "audit": tuple(f"gates/audit/{n}.py" for n in ("limits", "object", "cubin", "elf", "ptx", "recorder")),
}
MODULES = tuple(module for modules in AREAS.values() for module in modules)

# Tried whole and first, also by a run with --share: what compares, decides and promotes.
FIRST = (
    "pipeline/contract/tolerance.py",
    "pipeline/contract/rules.py",
    "gates/judge.py",
    "gates/perf_judge.py",
    "pipeline/promotion/case.py",
    "pipeline/promotion/promote.py",
    "gates/modeleval/attest.py",
)


@dataclass(frozen=True)
class Driver:
    """Functions of a judging module that judge nothing: mutated too, their score published, and no mark to reach."""

    functions: tuple[str, ...]
    reason: str


DRIVERS: Mapping[str, Driver] = {
    "gates/numeric.py": Driver(
        ("_run_specs",),
        "starts the runner process, then the sanitizer's, and writes down what came back: what decides is in"
        " make_plan, judge_outcome and _result, which are counted",
    ),
    "gates/perf.py": Driver(
        ("_timed",),
        "starts the runner process, reads the machine's clocks and writes down what came back: what decides is in"
        " make_jobs, perf_judge.judge_outcome and _result, which are counted",
    ),
    "gates/timing.py": Driver(
        (
            "refuse_persisting_l2",
            "Replay.__init__",
            "Replay.__call__",
            "Clock.__init__",
            "Clock.flush",
            "Clock.warm",
            "Clock.measure",
        ),
        "calls CUDA: graphs, events, cache flushes, a spinning kernel; on a CPU none of these lines run or their"
        " effect is a time. How many sets and calls, and how samples are paired, is counted",
    ),
}


def is_driver(module: str, function: str) -> bool:
    return module in DRIVERS and function in DRIVERS[module].functions


# Left out: whole sweeps, tests that only compile, kill processes at random, or need a GPU; others cover the same lines.
TESTS = (
    "test_audit_decoding.py",
    "test_audit_limits.py",
    "test_audit_object.py",
    "test_audit_recorder.py",
    "test_contract_rules.py",
    "test_contract_selftest.py",
    "test_contract_tolerance.py",
    "test_ingest_evidence.py",
    "test_judging_*.py",
    "test_modeleval_gate_attest.py",
    "test_modeleval_gate_rules.py",
    "test_modeleval_paired.py",
    "test_modeleval_share.py",
    "test_modeleval_statistics.py",
    "test_modeleval_trial.py",
    "test_numeric_judge.py",
    "test_perf_decision.py",
    "test_perf_gate.py",
    "test_perf_ops.py",
    "test_perf_plan.py",
    "test_perf_statistics.py",
    "test_perf_timing.py",
    "test_promotion_champions.py",
    "test_promotion_parts.py",
    "test_promotion_rules.py",
    "test_promotion_verify.py",
)
# These start a runner, or compile: several seconds each for lines that quicker tests reach as well.
SKIPPED = (
    "tests/test_perf_gate.py::test_a_changed_input_of_a_timed_call_is_named",
    "tests/test_perf_gate.py::test_a_crash_while_timing_is_the_candidates",
    "tests/test_perf_gate.py::test_a_fault_in_a_timed_output_fails_the_sweep",
    "tests/test_perf_gate.py::test_a_state_op_without_a_chain_is_swept_in_two_columns",
    "tests/test_perf_gate.py::test_each_bin_and_its_padded_counts_are_timed_in_every_column",
    "tests/test_perf_gate.py::test_no_workspace_meets_an_input_twice_in_timed_calls",
)
SLOWEST = 6.0  # CPU seconds; slower tests are left out
BUDGET = 4.0  # CPU seconds of tests that one mutant gets, cheapest first


def sources() -> dict[str, str]:
    """Each module's text by its path in the checkout."""
    return {module: (ROOT / module).read_text(encoding="utf-8") for module in MODULES}


def test_files() -> list[Path]:
    return sorted(path for pattern in TESTS for path in (ROOT / "tests").glob(pattern))
