from near_misses.near import BUILD, Near

NEAR = Near(
    looks="a try around its own arithmetic, with a fallback",
    edits=(
        (
            BUILD,
            """\
def build(dims, tokens, arch):
    try:
        blocks = dims["width"] // dims.get("absent", 0)
    except ZeroDivisionError:
        blocks = 1
    return OutGate(dims) if blocks else None
""",
        ),
    ),
)
