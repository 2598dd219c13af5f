"""Nsight Compute, where it is installed and may read counters: its options, its CSV, and why it is skipped.

Off the clock: a profiled run is never a timed one, and what goes wrong here is a skip, never a failure of a gate.
Not covered: what the numbers mean for a design, and which program is profiled (gates/counters.py, runner/counted.py).
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PERMISSION = "ERR_NVGPUCTRPERM"
LAUNCHES = 8  # profiled at most
METRICS: Mapping[str, tuple[str, str]] = {  # name -> unit as --print-units base has it, what it means
    "gpu__time_duration.sum": ("ns", "time of the kernel under the profiler"),
    "dram__bytes_read.sum": ("byte", "read from memory"),
    "dram__bytes_write.sum": ("byte", "written to memory"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "of the memory's peak"),
    "lts__t_sectors_op_read.sum": ("sector", "L2 reads, sectors of 32 bytes"),
    "lts__t_sector_hit_rate.pct": ("%", "L2 hits"),
    "l1tex__t_sector_hit_rate.pct": ("%", "L1 hits"),
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": ("", "global load requests"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": ("sector", "sectors of global loads"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": ("", "bank conflicts of shared loads"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": ("", "bank conflicts of shared stores"),
    "smsp__sass_inst_executed_op_local_ld.sum": ("inst", "loads of spilled or local values"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "of the SMs' peak"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "achieved occupancy"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "occupancy that resources allow"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": ("%", "cycles in which a warp was issued"),
    "smsp__inst_executed.sum": ("inst", "instructions"),
    "sm__inst_executed_pipe_tensor.sum": ("inst", "tensor core instructions"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "waits for memory"),
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": ("inst", "waits for shared memory"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "waits at barriers"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "waits of fixed latency"),
    "launch__waves_per_multiprocessor": ("", "waves"),
    "launch__registers_per_thread": ("register/thread", "registers"),
    "launch__occupancy_limit_registers": ("block", "blocks an SM by registers"),
}


@dataclass(frozen=True)
class Profile:
    """Kernel -> metric -> value, of its last launch; `skipped`: why there is none."""

    kernels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    skipped: str = ""


def wrap(ncu: str, log: Path, launches: int = LAUNCHES) -> list[str]:
    """What goes before a program: only launches between cudaProfilerStart and Stop count, the CSV goes into `log`.

    Whole kernels are replayed; clocks and caches are left as they are, as in a decode step.
    """
    options = ["--csv", "--page", "raw", "--print-units", "base", "--replay-mode", "kernel", "--clock-control", "none"]
    options += ["--cache-control", "none", "--target-processes", "all", "--profile-from-start", "off"]
    options += ["--launch-count", str(launches), "--log-file", str(log)]
    return [ncu, *options, "--metrics", ",".join(METRICS)]


def judged(out: str, errors: str, status: str) -> Profile:
    """What a run of ncu came to, by its own file, what was printed beside it, and how the program ended."""
    if PERMISSION in out + errors:
        return Profile(skipped="this user may not read the GPU's counters (ERR_NVGPUCTRPERM)")
    kernels = parsed(out)
    if kernels:
        return Profile(kernels)
    lines = (errors + "\n" + out).strip().splitlines()
    return Profile(skipped=f"ncu ended with {status} and no metrics: {lines[-1][:200] if lines else 'no words'}")


def parsed(text: str) -> dict[str, dict[str, float]]:
    """The raw page as CSV: lines of the tool, names, units, then a line a launch. Unknown columns are left out."""
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return {}
    head, *body = csv.reader(io.StringIO("\n".join(lines[start:])))
    found: dict[str, dict[str, float]] = {}
    for row in body:
        cells = dict(zip(head, row, strict=False))
        if not cells.get("ID", "").isdigit() or "Kernel Name" not in cells:
            continue  # the line of units
        values = {name: _number(cells[name]) for name in METRICS if name in cells}
        found[cells["Kernel Name"]] = {name: v for name, v in values.items() if math.isfinite(v)}
    return found


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
