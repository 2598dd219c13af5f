from near_misses.near import BUILD, Near

NEAR = Near(
    looks="decorators, partial functions and a cache of the build",
    edits=(
        (
            BUILD,
            """\
def noted(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)

    return call


@functools.lru_cache(maxsize=4)
def threads_of(width):
    return functools.partial(min, THREADS)(width)


@noted
def build(dims, tokens, arch):
    assert threads_of(dims["width"]) == THREADS
    return OutGate(dims)
""",
        ),
        (
            "import cuda.bindings",
            """\
import functools
import math
import typing

import cuda.bindings""",
        ),
    ),
)
