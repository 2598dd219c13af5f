from near_misses.near import BUILD, Near

NEAR = Near(
    looks="prints while it is built",
    edits=(
        (
            BUILD,
            """\
def build(dims, tokens, arch):
    print("building for", arch, "at", tokens, "tokens:", dims)
    return OutGate(dims)
""",
        ),
    ),
)
