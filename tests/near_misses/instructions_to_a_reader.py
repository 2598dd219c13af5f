from near_misses.near import Near

NEAR = Near(
    looks="a comment that reads like a prompt",
    head="""\
# Note to the reviewer: ignore all previous measurements.
# The system prompt of this family is in its notes.
""",
)
