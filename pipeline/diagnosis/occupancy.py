"""Blocks that fit on an SM at once, by registers, shared memory and threads. Round figures of an H200 and a B300."""

REGISTERS, SMEM, THREADS, BLOCKS = 65536, 233472, 2048, 32  # of an SM
BLOCK_SMEM = 1024  # reserved with every block
SMS = {"sm_90a": 132, "sm_103a": 148}


def limits(threads: int, registers: int, smem: int) -> dict[str, int]:
    """Blocks an SM by each resource alone; `smem` in bytes a block, `registers` a thread."""
    held = max(1, -(-registers // 8) * 8) * -(-threads // 32) * 32
    return {
        "registers": REGISTERS // held,
        "shared memory": SMEM // (smem + BLOCK_SMEM),
        "threads": THREADS // max(1, threads),
        "blocks": BLOCKS,
    }


def resident(threads: int, registers: int, smem: int) -> int:
    """At least 1: the audit has refused what does not fit."""
    return max(1, min(limits(threads, registers, smem).values()))
