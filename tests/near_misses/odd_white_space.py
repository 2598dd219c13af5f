from near_misses.near import Near

NEAR = Near(
    looks="tabs, trailing blanks, blank lines and no line end at the end",
    edits=(("THREADS = 64\n", "THREADS = 64   " + "\n" * 5 + "\t\n"),),
    tail="\n\n\n# end",
)
