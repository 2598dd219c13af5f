from near_misses.near import Near

NEAR = Near(
    looks="a kernel that is defined and not launched: it never reaches the cubin",
    edits=(
        (
            "    @cute.jit\n    def gated",
            """\
    @cute.kernel
    def spare(self, y: cute.Tensor):
        y[0, 0] = BFloat16(1.0)

    @cute.jit
    def gated""",
        ),
    ),
)
