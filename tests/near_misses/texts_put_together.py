from near_misses.near import Near

NEAR = Near(
    looks="format texts and f-strings for a label",
    tail="""\


def design(dims, tokens, arch):
    return "{}-{:>2d}".format("plain", tokens) + f" {arch} {dims['width']:04d}" + " %d" % THREADS
""",
)
