from near_misses.near import STORE, Near

NEAR = Near(
    looks="an output that is written twice",
    edits=(
        (
            STORE,
            """\
        y[token, column] = BFloat16(0.0)
        y[token, column] = self.gated(lat, w_uv, p, lengths, token, column)
""",
        ),
    ),
)
