"""Prints without end."""


def build(dims, tokens, arch):
    while True:
        print("x" * 100_000)
