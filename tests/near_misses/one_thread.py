from near_misses.near import Near

NEAR = Near(
    looks="blocks of a single thread",
    edits=(("THREADS = 64", "THREADS = 1"),),
)
