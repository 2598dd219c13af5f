"""Kernels that break a GPU's context or never end, as edits of a right one, and that right one."""

from collections.abc import Mapping

from near_misses.near import BASE, LAUNCH, STORE, STREAM, Near

KERNEL = "lengths: cute.Tensor, y: cute.Tensor):"
TAIL = """


def workspaces(dims, tokens, arch):
    return [("{dtype}", (1024,))]
"""
LAYERS = 4096  # times the 4 CTAs and more of the right kernel: far more than any GPU holds at a time
RIGHT = "right"


def _edited(what: str, dtype: str, body: str, launch: str = LAUNCH) -> str:
    """The right kernel with a workspace `work`, and `body` before its store."""
    edits = (
        (STREAM, f"        work: cute.Tensor,\n{STREAM}"),
        (LAUNCH, launch.replace("lengths, y)", "lengths, y, work)")),
        (KERNEL, "lengths: cute.Tensor, y: cute.Tensor, work: cute.Tensor):"),
        (STORE, body + STORE),
    )
    return Near(what, edits, tail=TAIL.format(dtype=dtype)).source


ILLEGAL = """\
        wild = work.iterator + cutlass.Int64(1 << 40)
        cute.arch.store(wild.llvm_ptr, cutlass.Int32(1), sem="relaxed", scope="gpu")
"""
MISALIGNED = """\
        odd = work.iterator + 1
        cute.arch.store(odd.llvm_ptr, cutlass.Int32(1), sem="relaxed", scope="gpu")
"""
ENDLESS = """\
        seen = cutlass.Int32(0)
        while seen < 1:
            seen = cute.arch.load(work.iterator.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
"""
BARRIER = f"""\
        blocks, tokens, _ = cute.arch.grid_dim()
        if thread == 0:
            cute.arch.atomic_add(work.iterator.llvm_ptr, cutlass.Int32(1), sem="release", scope="gpu")
        seen = cutlass.Int32(0)
        while seen < blocks * tokens * {LAYERS}:
            seen = cute.arch.load(work.iterator.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
"""
SOURCES: Mapping[str, str] = {
    "illegal_address": _edited("writes to an address that is nobody's", "i32", ILLEGAL),
    "misaligned_address": _edited("writes a word at an odd address", "u8", MISALIGNED),
    "endless_loop": _edited("waits for a value that nobody writes", "i32", ENDLESS),
    "grid_deadlock": _edited(
        "a barrier over more CTAs than fit", "i32", BARRIER, LAUNCH.replace("grid=grid", f"grid=[*grid[:2], {LAYERS}]")
    ),
    RIGHT: BASE,
}
EXPECTED: Mapping[str, tuple[str, str]] = {  # status and code
    "illegal_address": ("fail", "numeric.crash"),
    "misaligned_address": ("fail", "numeric.crash"),
    "endless_loop": ("fail", "numeric.timeout"),
    "grid_deadlock": ("fail", "numeric.timeout"),
    RIGHT: ("pass", "numeric.pass"),
}
EXPECTED_BUILD: Mapping[str, str] = {"grid_deadlock": "audit.wait"}  # the others pass the compile gate
