from near_misses.near import LAUNCH, Near

NEAR = Near(
    looks="many launches a call",
    edits=(
        (
            LAUNCH,
            """\
        for first in range(self.tokens * self.width // THREADS):
            at = first % (self.width // THREADS), first // (self.width // THREADS)
            self.kernel(lat, w_uv, p, lengths, y, *at).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream)
""",
        ),
        (
            "lengths: cute.Tensor, y: cute.Tensor):",
            "lengths: cute.Tensor, y: cute.Tensor, block: cutlass.Int32, token: cutlass.Int32):",
        ),
        ("        block, token, _ = cute.arch.block_idx()\n", ""),
    ),
)
