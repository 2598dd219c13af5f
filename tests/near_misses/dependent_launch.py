from near_misses.near import STORE, Near

NEAR = Near(
    looks="a launch that starts before the one before it has ended, and waits",
    edits=(
        ("block=[THREADS, 1, 1], stream=stream)", "block=[THREADS, 1, 1], stream=stream, use_pdl=True)"),
        (
            STORE,
            """\
        cute.arch.griddepcontrol_wait()
        y[token, column] = self.gated(lat, w_uv, p, lengths, token, column)
        cute.arch.griddepcontrol_launch_dependents()
""",
        ),
    ),
)
