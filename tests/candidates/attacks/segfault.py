"""Dies by reading address 0."""

import ctypes


def build(dims, tokens, arch):
    return ctypes.string_at(0)
