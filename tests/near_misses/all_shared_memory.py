from near_misses.near import Near

NEAR = Near(
    looks="all the shared memory that a block can have",
    edits=(("stream=stream)\n", "smem=232448, stream=stream)\n"),),
)
