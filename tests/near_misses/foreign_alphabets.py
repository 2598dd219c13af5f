from near_misses.near import Near

NEAR = Near(
    looks="letters of other alphabets, in names and comments",
    edits=(
        (
            "        value = total.to(BFloat16).to(Float32)\n",
            """\
        γ = total.to(BFloat16)  # 門, بوابة, шлюз
        value = γ.to(Float32)
""",
        ),
    ),
)
