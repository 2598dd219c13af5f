"""Takes memory without end."""


def build(dims, tokens, arch):
    return bytearray(64 << 30)
