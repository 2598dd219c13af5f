from near_misses.near import LAUNCH, Near

NEAR = Near(
    looks="a kernel of its own for every block of columns",
    edits=(
        (
            LAUNCH,
            """\
        for block in cutlass.range_constexpr(self.width // THREADS):
            self.kernel(lat, w_uv, p, lengths, y, block).launch(
                grid=[self.tokens, 1, 1], block=[THREADS, 1, 1], stream=stream
            )
""",
        ),
        (
            "lengths: cute.Tensor, y: cute.Tensor):",
            "lengths: cute.Tensor, y: cute.Tensor, block: cutlass.Constexpr[int]):",
        ),
        ("        block, token, _ = cute.arch.block_idx()\n", "        token, _, _ = cute.arch.block_idx()\n"),
    ),
)
