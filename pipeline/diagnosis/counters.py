"""What Nsight Compute counted of a kernel, as one finding each. Not covered: reading it (gates/counters.py)."""

from collections.abc import Mapping
from typing import Any

from kgen.diagnosis.findings import PERF, Finding
from kgen.diagnosis.words import cell
from kgen.gates.runner.ncu import METRICS

LOCAL = "smsp__sass_inst_executed_op_local_ld.sum"
CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
MEMORY, SHARED, BARRIER = (STALL.format(name) for name in ("long_scoreboard", "short_scoreboard", "barrier"))
SAID = (  # of all that are recorded
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "l1tex__t_sector_hit_rate.pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    MEMORY,
    SHARED,
    BARRIER,
    *CONFLICTS,
    LOCAL,
)
MANY = 1.0  # warps that wait for one reason, for each instruction that is issued


def findings(key: str, kernels: Any) -> list[Finding]:
    """`kernels`: kernel -> metric -> value."""
    if not isinstance(kernels, Mapping):
        return []
    return [_of(key, str(kernel), values) for kernel, values in kernels.items() if isinstance(values, Mapping)]


def _of(key: str, kernel: str, values: Mapping[str, Any]) -> Finding:
    known = {name: float(v) for name, v in values.items() if name in METRICS and isinstance(v, int | float)}
    said = [f"{METRICS[name][1]} {_amount(name, known[name])}" for name in SAID if name in known]
    waits = {name: known.get(name, 0.0) for name in (MEMORY, SHARED, BARRIER)}
    most = max(waits, key=lambda name: waits[name])
    fixes = []
    if known.get(LOCAL, 0):
        fixes.append("local memory is read: fewer live values, constant indices")
    if any(known.get(name, 0) for name in CONFLICTS):
        fixes.append("bank conflicts: pad or swizzle the shared tile")
    if waits[most] > MANY:
        fixes.append(
            {
                MEMORY: "warps wait for memory: more bytes in flight, earlier",
                SHARED: "warps wait for shared memory: wider accesses, fewer of them",
                BARRIER: "warps wait at barriers: fewer of them, more even work between them",
            }[most]
        )
    text = f"{cell(key)} {cell(kernel)[:40]} under ncu: {', '.join(said)}"
    return Finding(PERF, 1, "counters", text, "; ".join(fixes), known)


def _amount(name: str, value: float) -> str:
    unit = METRICS[name][0]
    return f"{value:.3g} {unit}".strip() if unit != "%" else f"{value:.0f} %"
