"""Blocks that are on a GPU at once: on an SM by registers, shared memory and threads, and on the whole of it.

Figures of an H200 (sm_90a) and a B300 (sm_103a); a GPU of the same architecture may have fewer SMs, and a slice of one
has. Not covered: what else runs there.
"""

REGISTERS, SMEM, THREADS, BLOCKS = 65536, 233472, 2048, 32  # of an SM
BLOCK_SMEM = 1024  # reserved with every block
SMS = {"sm_90a": 132, "sm_103a": 148}
QUARTERS = 4  # of an SM
PARTS = 8  # of a GPU at most (GPCs); a cluster lies in one of them


def limits(threads: int, registers: int, smem: int, carveout: int = 0) -> dict[str, int]:
    """Blocks an SM by each resource alone; `smem` in bytes a block, `registers` a thread, `carveout`: the share of an
    SM's memory that the launch asks for as shared, in percent; 0: it does not ask."""
    held = 8 * max(1, -(-registers // 8)) * 32 * max(1, -(-threads // 32))
    return {
        "registers": REGISTERS // held,
        "shared memory": SMEM * (carveout or 100) // 100 // (smem + BLOCK_SMEM),
        "threads": THREADS // max(1, threads),
        "blocks": BLOCKS,
    }


def resident(threads: int, registers: int, smem: int, carveout: int = 0) -> int:
    """At least 1: the audit has refused what does not fit."""
    return max(1, min(limits(threads, registers, smem, carveout).values()))


def sure(arch: str, block: int, registers: int, smem: int, cluster: int, carveout: int) -> int:
    """Blocks of one launch that are there at once in any case, on a GPU with nothing else to do; at least one cluster.

    `block`: threads. Registers go to the four quarters of an SM by whole warps. Clusters may leave room for all but one
    of their blocks in every part of the GPU.
    """
    warps, a_warp = max(1, -(-block // 32)), 8 * max(1, -(-registers // 8)) * 32
    by_quarters = REGISTERS // QUARTERS // a_warp * QUARTERS // warps
    an_sm = max(1, min(resident(32 * warps, registers, smem, carveout), by_quarters))
    places = SMS.get(arch, min(SMS.values())) * an_sm - PARTS * (cluster - 1)
    return max(1, places // cluster) * cluster
