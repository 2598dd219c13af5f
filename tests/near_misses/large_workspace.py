from near_misses.near import STREAM, Near

NEAR = Near(
    looks="two hundred megabytes of workspace, of which little is used",
    edits=(
        (
            STREAM,
            """\
        room: cute.Tensor,
        stream: cuda.CUstream,
""",
        ),
    ),
    tail="""\


def workspaces(dims, tokens, arch):
    return [("u8", (200 << 20,))]
""",
)
