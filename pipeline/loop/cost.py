"""The static cost: which of many candidates deserve the full matrix, guessed from build records alone.

For each launch of a call, in µs:

    bytes     every tensor and workspace among its arguments, once, at the rate of a plain read
    occupancy bytes in flight an SM (Little's law): resident blocks, limited by registers, shared memory and threads,
              times the wide loads of their threads and, where copies are asynchronous, their shared memory; less than
              IN_FLIGHT leaves the memory idle, and the rate falls in proportion
    waves     blocks an SM, rounded up, over the mean: SMs that wait for the last block (square root: the others then
              have the memory to themselves)
    spills    local memory a thread is traffic: every byte adds SPILL_SHARE of the launch's time
    launch    a fixed price, lower for a launch that overlaps its predecessor (programmatic dependent launch); a
              cooperative launch pays once more, for the meeting of its blocks that stands in for a second launch

The cost of a candidate is the sum over the quick tier. It orders designs that differ in these things and knows nothing
of instruction order, bank conflicts or cache policy: it picks finalists, it never judges. Constants are round figures
of an H200 and a B300; only their proportions matter. It counts with all SMs at the small dims too, where there is
hardly a block: finer splits lower it there, which says nothing of a time. kgen.diagnosis.static has it in words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.contract.op import Op
from kgen.contract.tensors import DTYPES
from kgen.gates.occupancy import resident
from kgen.records import BuildRecord, KernelFacts, Launch

LAUNCH_US, DEPENDENT_LAUNCH_US = 2.0, 1.0
IN_FLIGHT = 27_000.0  # bytes an SM: 4.48 TB/s times 0.8 µs of latency over 132 SMs
WIDE_LOADS = 8.0  # of 16 bytes: a thread keeps at most about this many in flight
SPILL_SHARE = 0.02


@dataclass(frozen=True)
class Machine:
    sms: int
    bytes_per_us: float


MACHINES: Mapping[str, Machine] = {"sm_90a": Machine(132, 4.48e6), "sm_103a": Machine(148, 7.2e6)}


@dataclass(frozen=True)
class LaunchCost:
    """What one launch is made of; `us` is the guess, and the sum of the five terms (µs) at the end."""

    kernel: str
    us: float
    bytes: int
    registers: int
    stack_bytes: int
    in_flight: float  # bytes an SM
    waves: float
    problem: str = ""  # its key
    blocks: int = 0
    small: bool = False  # whether its dims are the op's small ones
    launch_us: float = 0.0
    bytes_us: float = 0.0  # at the rate of a plain read
    thin_us: float = 0.0  # what too few bytes in flight add to that
    uneven_us: float = 0.0  # then SMs that wait for the last block
    spill_us: float = 0.0


def resident_blocks(launch: Launch, kernel: KernelFacts) -> int:
    """Blocks that fit on an SM at once; at least 1, because the audit has refused what does not fit."""
    return resident(math.prod(launch.block), kernel.registers, launch.dynamic_smem + kernel.static_smem)


def launch_bytes(op: Op, record: BuildRecord, launch: Launch) -> int:
    """Bytes of the tensors and workspaces that a launch is given, each once."""
    sizes = op.sizes(record.problem)
    known = {t.name: (t.dtype, t.sizes(sizes)) for t in op.present(record.problem)}
    known |= {f"workspace{i}": (dtype, tuple(shape)) for i, (dtype, shape) in enumerate(record.workspaces)}
    known |= {each.name: (each.dtype, each.shape) for each in record.symmetric}  # one parity a call
    named = {arg.tensor for arg in launch.args if arg.tensor in known}
    return sum(DTYPES[known[name][0]].bytes * math.prod(known[name][1]) for name in named)


def launch_cost(op: Op, record: BuildRecord, launch: Launch) -> LaunchCost:
    kernel = next(k for k in record.kernels if k.name == launch.kernel)
    machine = MACHINES.get(record.problem.arch, MACHINES["sm_90a"])
    blocks = math.prod(launch.grid)
    per_sm = blocks / machine.sms
    fits = resident_blocks(launch, kernel)
    resident = min(fits, math.ceil(per_sm)) * min(1.0, per_sm)
    in_flight = resident * _block_in_flight(record, launch, kernel)
    busy = min(1.0, in_flight / IN_FLIGHT)
    balance = per_sm / math.ceil(per_sm)
    bytes_ = launch_bytes(op, record, launch)
    overhead = DEPENDENT_LAUNCH_US if launch.attributes.get("pdl") else LAUNCH_US
    if launch.attributes.get("cooperative"):
        overhead += DEPENDENT_LAUNCH_US
    spilled = 1.0 + SPILL_SHARE * kernel.stack_bytes
    us = overhead + spilled * bytes_ / (machine.bytes_per_us * busy * math.sqrt(balance))
    plain = bytes_ / machine.bytes_per_us
    thin, even = plain / busy, plain / (busy * math.sqrt(balance))
    return LaunchCost(
        kernel.name,
        us,
        bytes_,
        kernel.registers,
        kernel.stack_bytes,
        in_flight,
        per_sm / fits,
        problem=record.problem.key,
        blocks=blocks,
        small=record.problem.dims == op.pack.small,
        launch_us=overhead,
        bytes_us=plain,
        thin_us=thin - plain,
        uneven_us=even - thin,
        spill_us=(spilled - 1.0) * even,
    )


def _block_in_flight(record: BuildRecord, launch: Launch, kernel: KernelFacts) -> float:
    """Bytes that a block can have on their way. Instruction counts are those of the whole object."""
    count = record.ptx.get
    wide = float(count("global_loads_16b", 0) + count("global_loads_32b", 0)) / max(1, len(record.kernels))
    by_threads = 16.0 * math.prod(launch.block) * min(WIDE_LOADS, max(0.5, wide))
    copies = count("cp_async", 0) + count("bulk_copies", 0)
    return by_threads + float(launch.dynamic_smem + kernel.static_smem if copies else 0)


def static_cost(op: Op, records: Sequence[BuildRecord]) -> float:
    """µs over all launches of one call at each of these problems. Deterministic."""
    return sum(launch_cost(op, record, launch).us for record in records for launch in record.launches)
