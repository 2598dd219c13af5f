from near_misses.near import STORE, STREAM, Near

NEAR = Near(
    looks="a counter of calls in a workspace, which goes back to zero",
    edits=(
        (
            STREAM,
            """\
        count: cute.Tensor,
        stream: cuda.CUstream,
""",
        ),
        ("self.kernel(lat, w_uv, p, lengths, y).launch", "self.kernel(lat, w_uv, p, lengths, y, count).launch"),
        ("lengths: cute.Tensor, y: cute.Tensor):", "lengths: cute.Tensor, y: cute.Tensor, count: cute.Tensor):"),
        (
            STORE,
            """\
        y[token, column] = self.gated(lat, w_uv, p, lengths, token, column)
        if thread == 0:
            cute.arch.atomic_add(count.iterator.llvm_ptr, cutlass.Int32(1), sem="relaxed", scope="gpu")
            cute.arch.atomic_add(count.iterator.llvm_ptr, cutlass.Int32(-1), sem="relaxed", scope="gpu")
""",
        ),
    ),
    tail="""\


def workspaces(dims, tokens, arch):
    return [("i32", (4,))]
""",
)
