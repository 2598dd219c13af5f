from near_misses.near import Near

NEAR = Near(
    looks="getattr and hasattr, of plain names",
    edits=(
        (
            "        self.latent, self.value = dims",
            """\
        self.rounds = getattr(self, "rounds", 1) if hasattr(self, "rounds") else 1
        self.latent, self.value = dims""",
        ),
    ),
)
