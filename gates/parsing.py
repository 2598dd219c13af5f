"""Python's parser, one text at a time: the one place that calls it.

CPython 3.11 counts the depth of the trees of all threads together. A thread that starts to parse while another one is
at it (the collector may run code, and so change threads, in the middle) gets "SystemError: AST constructor recursion
depth mismatch" for a source that has nothing wrong. Candidates are built side by side, so this would happen.
"""

import ast
import functools
import threading
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.Lock()
# What the parser raises for a text that is no Python: null characters are a ValueError, absurd nesting one of the last.
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(source: str | bytes) -> ast.Module:
    """The tree of `source`. Raises one of UNPARSABLE."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)


@functools.lru_cache(maxsize=8)
def shared(source: str) -> ast.Module:
    """The tree of a source that several ask for, one after the other: nobody may change it. Raises as `parse` does."""
    return parse(source)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Those of ast.iter_child_nodes, in a third of its time."""
    for value in vars(node).values():
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item


def every(tree: ast.AST) -> list[ast.AST]:
    """The node and all below it, in no order that means anything."""
    found = [tree]
    for node in found:  # it grows meanwhile
        found += children(node)
    return found
