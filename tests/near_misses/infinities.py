from near_misses.near import Near

NEAR = Near(
    looks="infinities and NaN as constants",
    edits=(
        (
            "        total = Float32(0.0)\n",
            """\
        most, none = Float32(float("-inf")), Float32(float("nan"))
        total = Float32(0.0)
        if most > total:
            total = none
""",
        ),
    ),
)
