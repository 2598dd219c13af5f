from near_misses.near import Near

NEAR = Near(
    looks="clusters of blocks that need none",
    edits=(("block=[THREADS, 1, 1], stream=stream)", "block=[THREADS, 1, 1], stream=stream, cluster=[4, 1, 1])"),),
)
