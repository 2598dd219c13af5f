from near_misses.near import STORE, Near

NEAR = Near(
    looks="blocks of 1024 threads, three quarters of which do nothing",
    edits=(
        ("block=[THREADS, 1, 1]", "block=[1024, 1, 1]"),
        (
            STORE,
            """\
        if thread < THREADS:
            y[token, column] = self.gated(lat, w_uv, p, lengths, token, column)
""",
        ),
    ),
)
