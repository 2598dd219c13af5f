"""Small bad candidates, each an edit of tests/candidates/row_copy.py: name -> (class, old text, new text)."""

from pathlib import Path

BASE = (Path(__file__).parents[1] / "candidates" / "row_copy.py").read_text()
STORE = "    y[b, t] = m[b, t]\n"
LAUNCH = "    kernel(m, w, d, y).launch(grid=[m.shape[0], 1, 1], block=[128, 1, 1], stream=stream)\n"
BUILD = "    return host\n"
ATOM = "cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), BFloat16, num_bits_per_copy=128)"
SMEM = """    smem = cutlass.memory.SmemAllocator()
    x = smem.allocate_tensor(Float32, cute.make_layout((70000,)), byte_alignment=16)
    x[t] = Float32(1.0)
    y[0, t] = x[0].to(BFloat16)
"""
SPILL = """    r = cute.make_rmem_tensor((64,), Float32)
    for i in cutlass.range_constexpr(64):
        r[i] = m[0, i].to(Float32)
    v = Float32(0.0)
    for i in cutlass.range(t):
        v += r[(i * 7) % 64]
    y[0, t] = v.to(BFloat16)
"""
UNEQUAL = """    r = cute.make_rmem_tensor((4,), BFloat16)
    cute.autovec_copy(cute.local_tile(m[0, None], (8,), (t,)), r)
    y[0, t] = r[0]
"""
ABORT = f"""    r = cute.make_rmem_tensor((3,), BFloat16)
    cute.copy({ATOM}, cute.local_tile(m[0, None], (3,), (t,)), r)
"""
UNALIGNED = f"""    r = cute.make_rmem_tensor((8,), BFloat16)
    cute.copy({ATOM}, cute.make_tensor(m.iterator + t, cute.make_layout((8,))), r)
    y[0, t] = r[0]
"""
ASM = "    cute.arch.inline_ptx('mov.b32 {$w0}, {$r0};', write_only_types=[Float32], read_only_args=[m[0, 0]])\n"

CASES = {
    "missing colon": ("syntax", STORE, "    if t == 0\n        pass\n"),
    "import of torch": (
        "forbidden-import",
        "import cutlass.cute as cute\n",
        "import cutlass.cute as cute\nimport torch\n",
    ),
    "opens a file": ("forbidden-name", BUILD, "    open('x')\n" + BUILD),
    "unknown name": ("unknown-name", STORE, "    y[b, t] = nowhere\n"),
    "unknown attribute": ("unknown-attribute", STORE, "    y[b, t] = cute.arch.warp_sum(m[b, t])\n"),
    "unknown keyword": ("bad-call", STORE, "    r = cute.make_rmem_tensor((4,), BFloat16, align=16)\n" + STORE),
    "early exit": ("early-exit", STORE, "    if t > 3:\n        return\n" + STORE),
    "first set in a branch": (
        "unknown-name",
        STORE,
        "    if t > 3:\n        v = Float32(1.0)\n    y[b, t] = v.to(BFloat16)\n",
    ),
    "unstable type": ("unstable-type", STORE, "    x = 0\n    for i in range(t):\n        x += 1.5\n" + STORE),
    "not constant": ("not-constant", STORE, "    for i in cutlass.range_constexpr(t):\n    " + STORE),
    "const_expr of a thread": ("not-constant", STORE, "    if cutlass.const_expr(t < 3):\n    " + STORE),
    "list by thread": ("dynamic-index", STORE, "    c = [1, 2, 3]\n    v = c[t]\n" + STORE),
    "store of another dtype": ("dtype", STORE, "    y[b, t] = Float32(1.0)\n"),
    "copy of unequal sizes": ("copy-size", STORE, UNEQUAL),
    "unaligned vector": ("alignment", STORE, UNALIGNED),
    "rank": ("layout", STORE, "    y[b, t, 0] = m[b, t]\n"),
    "native abort": ("native-abort", STORE, ABORT),
    "unknown instruction": ("ptxas", STORE, "    cute.arch.inline_ptx('bogus.op;')\n" + STORE),
    "types that the backend lacks": ("nvvm", STORE, ASM),
    "never launched": ("not-launched", LAUNCH, "    kernel(m, w, d, y)\n"),
    "wrong parameters": ("host-arguments", "y: cute.Tensor, stream", "y: cute.Tensor, z: cute.Tensor, stream"),
    "no build": ("contract", "def build", "def rebuild"),
    "build raises": ("build-raised", BUILD, "    raise ValueError('no such width')\n"),
    "recursion": ("recursion", BUILD, "    return build(dims, tokens, arch)\n"),
    "endless": ("never-ends", BUILD, "    while True:\n        pass\n"),
    "spill": ("spill", STORE, SPILL),
    "shared memory": ("shared-memory", STORE, SMEM),
    "threads": ("block-size", "[128, 1, 1]", "[2048, 1, 1]"),
}


def source(name: str) -> str:
    _, old, new = CASES[name]
    assert old in BASE
    return BASE.replace(old, new)
