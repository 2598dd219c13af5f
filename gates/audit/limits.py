"""Limits that a launch must keep on the machine it is claimed for, and the rule that launches and cubin agree."""

import math
from collections.abc import Sequence

from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.records import KernelFacts, Launch

BLOCK_THREADS = 1024
SMEM_BYTES = 232448  # of a block, static and dynamic: 227 KiB on sm_90a and sm_103a alike
GRID = (2**31 - 1, 65535, 65535)
CLUSTER_BLOCKS = 16  # 8 is portable, 16 needs the non-portable attribute
REGISTERS = 65536  # of a multiprocessor; one block must fit
# Bytes of stack a thread: spills and arrays indexed at run time both live there, in local memory. Decode kernels are
# bound by memory traffic, so none is allowed; raise it here, for all, if a kernel ever shows that it pays.
STACK_BYTES = 0
REGISTER_UNIT = 256  # registers are handed out by warp in units of this many


def check(cubin: Cubin, launches: Sequence[Launch]) -> None:
    """Raises AuditError for the first rule that does not hold."""
    facts = {kernel.name: kernel for kernel in cubin.kernels}
    if not launches:
        raise AuditError("audit.launches", "the call launches nothing")
    launched = {launch.kernel for launch in launches}
    if launched - set(facts):
        raise AuditError("audit.kernels", f"launched but not in the cubin: {sorted(launched - set(facts))[0][:80]}")
    if set(facts) - launched:
        raise AuditError("audit.kernels", f"in the cubin but never launched: {sorted(set(facts) - launched)[0][:80]}")
    if cubin.variables:
        raise AuditError(
            "audit.state",
            f"the cubin holds {cubin.variables} bytes of device variables, which outlive a call unseen:"
            " what a kernel keeps belongs in its workspaces",
        )
    for kernel in cubin.kernels:
        if kernel.stack_bytes > STACK_BYTES:
            raise AuditError(
                "audit.spill",
                f"kernel {kernel.name[:60]} uses {kernel.stack_bytes} bytes of stack a thread (spills, or an array"
                f" indexed at run time); allowed: {STACK_BYTES}. It has {kernel.registers} registers a thread",
            )
    for launch in launches:
        _launch(launch, facts[launch.kernel])


def _launch(launch: Launch, kernel: KernelFacts) -> None:
    threads, name = math.prod(launch.block), launch.kernel[:60]
    if not 1 <= threads <= BLOCK_THREADS or launch.block[2] > 64:
        raise AuditError("audit.block", f"kernel {name}: {threads} threads a block, allowed are 1 to {BLOCK_THREADS}")
    if kernel.max_threads and threads > kernel.max_threads:
        raise AuditError("audit.block", f"kernel {name}: {threads} threads, compiled for {kernel.max_threads}")
    smem = kernel.static_smem + launch.dynamic_smem
    if smem > SMEM_BYTES:
        raise AuditError("audit.smem", f"kernel {name}: {smem} bytes of shared memory, a block has {SMEM_BYTES}")
    if any(not 1 <= n <= most for n, most in zip(launch.grid, GRID, strict=True)):
        raise AuditError("audit.grid", f"kernel {name}: grid {launch.grid}")
    blocks = math.prod(launch.cluster)
    uneven = any(n % c for n, c in zip(launch.grid, launch.cluster, strict=True) if c > 0)
    if not 1 <= blocks <= CLUSTER_BLOCKS or uneven:
        raise AuditError("audit.cluster", f"kernel {name}: clusters of {launch.cluster} in a grid of {launch.grid}")
    warps = -(-threads // 32)
    per_warp = -(-kernel.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    if warps * per_warp > REGISTERS:
        raise AuditError(
            "audit.registers", f"kernel {name}: {kernel.registers} registers x {threads} threads do not fit in a block"
        )
