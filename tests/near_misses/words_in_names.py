from near_misses.near import Near

NEAR = Near(
    looks="names that hold forbidden words",
    edits=(
        (
            "        total = Float32(0.0)\n",
            """\
        opened, evaluated, timer, osc, system_rows = 0, 0, 0, 0, Float32(0.0)
        total = system_rows + opened + evaluated + timer + osc
""",
        ),
    ),
)
