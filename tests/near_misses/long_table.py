from near_misses.near import Near

NEAR = Near(
    looks="a table of constants that could be answers",
    edits=(
        ("        total = Float32(0.0)\n", "        total = Float32(TABLE[0])\n"),
        ("THREADS = 64\n", "THREADS = 64\nTABLE = (0.0, " + ", ".join(f"{i}.5" for i in range(3000)) + ")\n"),
    ),
)
