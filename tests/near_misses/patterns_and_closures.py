from near_misses.near import BUILD, Near

NEAR = Near(
    looks="match statements, lambdas, closures and walrus assignments",
    edits=(
        (
            BUILD,
            """\
def build(dims, tokens, arch):
    match dims:
        case {"width": int(width), "value": int(value)} if (heads := width // value) > 0:
            made = [(lambda chosen: (lambda: OutGate(chosen)))(dims) for _ in range(min(heads, 1))]
            return made[0]()
        case _:
            raise ValueError("no such width")
""",
        ),
    ),
)
