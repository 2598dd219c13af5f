from near_misses.near import Near

NEAR = Near(
    looks="expressions nested nearly as deep as is allowed",
    edits=(("        total = Float32(0.0)\n", "        total = Float32(" + "-(" * 60 + "0.0" + ")" * 60 + ")\n"),),
)
