from near_misses.near import Near

NEAR = Near(
    looks="a cooperative launch",
    edits=(("block=[THREADS, 1, 1], stream=stream)", "block=[THREADS, 1, 1], stream=stream, cooperative=True)"),),
)
