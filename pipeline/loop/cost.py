"""The static cost: which of many candidates deserve the full matrix, guessed from build records alone.

For each launch of a call, in µs:

    bytes     every tensor and workspace among its arguments, once, at the rate of a plain read
    occupancy resident warps an SM, of registers, shared memory and threads; fewer than ENOUGH_WARPS (less for kernels
              with many wide loads a thread) leave the memory idle: the rate falls in proportion
    waves     blocks an SM, rounded up, over the mean: SMs that wait for the last block
    spills    local memory a thread is traffic: every byte adds SPILL_SHARE of the launch's time
    launch    a fixed price, lower for a launch that overlaps its predecessor (programmatic dependent launch)

The cost of a candidate is the sum over the quick tier. It orders designs that differ in these things and knows nothing
of instruction order, bank conflicts or cache policy: it picks finalists, it never judges. Constants are round figures
of an H200 and a B300; only their proportions matter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.contract.op import Op
from kgen.contract.tensors import DTYPES
from kgen.records import BuildRecord, KernelFacts, Launch

LAUNCH_US, DEPENDENT_LAUNCH_US = 2.0, 1.0
ENOUGH_WARPS = 16.0  # an SM, with one wide load in flight a thread
WIDE_LOADS = 8.0  # a thread keeps at most about this many in flight
SPILL_SHARE = 0.02
REGISTERS, SMEM, THREADS, BLOCKS = 65536, 233472, 2048, 32  # of an SM
BLOCK_SMEM = 1024  # reserved with every block


@dataclass(frozen=True)
class Machine:
    sms: int
    bytes_per_us: float


MACHINES: Mapping[str, Machine] = {"sm_90a": Machine(132, 4.48e6), "sm_103a": Machine(148, 7.2e6)}


@dataclass(frozen=True)
class LaunchCost:
    """What one launch is made of; `us` is the guess."""

    kernel: str
    us: float
    bytes: int
    registers: int
    stack_bytes: int
    warps_per_sm: float
    waves: float


def resident_blocks(launch: Launch, kernel: KernelFacts) -> int:
    """Blocks that fit on an SM at once; at least 1, because the audit has refused what does not fit."""
    threads = math.prod(launch.block)
    registers = max(1, -(-kernel.registers // 8) * 8) * -(-threads // 32) * 32
    smem = launch.dynamic_smem + kernel.static_smem + BLOCK_SMEM
    return max(1, min(REGISTERS // registers, SMEM // smem, THREADS // threads, BLOCKS))


def launch_bytes(op: Op, record: BuildRecord, launch: Launch) -> int:
    """Bytes of the tensors and workspaces that a launch is given, each once."""
    sizes = op.sizes(record.problem)
    known = {t.name: (t.dtype, t.sizes(sizes)) for t in op.present(record.problem)}
    known |= {f"workspace{i}": (dtype, tuple(shape)) for i, (dtype, shape) in enumerate(record.workspaces)}
    named = {arg.tensor for arg in launch.args if arg.tensor in known}
    return sum(DTYPES[known[name][0]].bytes * math.prod(known[name][1]) for name in named)


def launch_cost(op: Op, record: BuildRecord, launch: Launch) -> LaunchCost:
    kernel = next(k for k in record.kernels if k.name == launch.kernel)
    machine = MACHINES.get(record.problem.arch, MACHINES["sm_90a"])
    blocks = math.prod(launch.grid)
    per_sm = blocks / machine.sms
    resident = min(resident_blocks(launch, kernel), math.ceil(per_sm))
    warps = resident * -(-math.prod(launch.block) // 32) * min(1.0, per_sm)
    loads = min(WIDE_LOADS, max(1.0, record.ptx.get("global_loads_16b", 0) / max(1, len(record.kernels))))
    busy = min(1.0, warps * math.sqrt(loads) / ENOUGH_WARPS)
    balance = per_sm / math.ceil(per_sm)
    bytes_ = launch_bytes(op, record, launch)
    overhead = DEPENDENT_LAUNCH_US if launch.attributes.get("pdl") else LAUNCH_US
    spilled = 1.0 + SPILL_SHARE * kernel.stack_bytes
    us = overhead + spilled * bytes_ / (machine.bytes_per_us * busy * math.sqrt(balance))
    waves = per_sm / resident_blocks(launch, kernel)
    return LaunchCost(kernel.name, us, bytes_, kernel.registers, kernel.stack_bytes, warps, waves)


def static_cost(op: Op, records: Sequence[BuildRecord]) -> float:
    """µs over all launches of one call at each of these problems. Deterministic."""
    return sum(launch_cost(op, record, launch).us for record in records for launch in record.launches)
