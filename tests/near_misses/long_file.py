from near_misses.near import Near

NEAR = Near(
    looks="more than a hundred kilobytes of comments",
    tail="\n".join(f"# tried in variant {i}: no faster, dropped" for i in range(2600)),
)
