from near_misses.near import LAUNCH, STREAM, Near

NEAR = Near(
    looks="weights copied to a workspace in another layout, in every call",
    edits=(
        (
            STREAM,
            """\
        pack: cute.Tensor,
        stream: cuda.CUstream,
""",
        ),
        (
            LAUNCH,
            """\
        self.packs(w_uv, pack).launch(grid=[self.latent, 1, 1], block=[self.width, 1, 1], stream=stream)
        self.kernel(lat, pack, p, lengths, y).launch(grid=grid, block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def packs(self, w_uv: cute.Tensor, pack: cute.Tensor):
        column, _, _ = cute.arch.thread_idx()
        k, _, _ = cute.arch.block_idx()
        pack[column, k] = w_uv[column // self.value, k, column % self.value]
""",
        ),
        ("w_uv[head, k, own]", "w_uv[column, k]"),
    ),
    tail="""\


def workspaces(dims, tokens, arch):
    return [("bf16", (dims["width"], dims["latent"]))]
""",
)
