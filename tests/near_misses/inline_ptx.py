from near_misses.near import STORE, Near

NEAR = Near(
    looks="inline PTX in a kernel",
    edits=(
        (
            STORE,
            """\
        here = cutlass.Int32(
            llvm.inline_asm(
                T.i32(), [], "mov.u32 $0, %ctaid.y;", "=r", has_side_effects=False, asm_dialect=llvm.AsmDialect.AD_ATT
            )
        )
        y[here, column] = self.gated(lat, w_uv, p, lengths, here, column)
""",
        ),
        (
            "from cutlass import BFloat16, Float32\n",
            """\
from cutlass import BFloat16, Float32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T
""",
        ),
    ),
)
