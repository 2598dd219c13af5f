from near_misses.near import BUILD, Near

NEAR = Near(
    looks="another block size by architecture and bin, as is allowed",
    edits=(
        (
            BUILD,
            """\
def build(dims, tokens, arch):
    threads = 32 if arch == "sm_103a" else 64 if tokens < 16 else 128
    return OutGate({**dims, "threads": threads})


def design(dims, tokens, arch):
    return "narrow" if tokens < 16 else "wide"
""",
        ),
        (
            "        self.latent, self.value = dims",
            """\
        self.threads = dims["threads"]
        self.latent, self.value = dims""",
        ),
        ("grid = [self.width // THREADS", "grid = [self.width // self.threads"),
        ("block=[THREADS, 1, 1]", "block=[self.threads, 1, 1]"),
        ("block * THREADS + thread", "block * self.threads + thread"),
    ),
)
