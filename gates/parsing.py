"""Python's parser, one text at a time: the one place that calls it.

CPython 3.11 counts the depth of the trees of all threads together. A thread that starts to parse while another one is
at it (the collector may run code, and so change threads, in the middle) gets "SystemError: AST constructor recursion
depth mismatch" for a source that has nothing wrong. Candidates are built side by side, so this would happen.
"""

import ast
import functools
import gc
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_ONE_AT_A_TIME = threading.Lock()
# What the parser raises for a text that is no Python: null characters are a ValueError, absurd nesting one of the last.
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(source: str | bytes) -> ast.Module:
    """The tree of `source`. Raises one of UNPARSABLE.

    The collector waits meanwhile: it would walk ten times through a tree of which nothing is garbage yet.
    """
    with _ONE_AT_A_TIME:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(source)
        finally:
            if collecting:
                gc.enable()


@functools.lru_cache(maxsize=8)
def shared(source: str) -> ast.Module:
    """The tree of a source that several ask for, one after the other: nobody may change it. Raises as `parse` does."""
    return parse(source)


# The commonest kinds of node -> their fields that hold nodes with a meaning of their own: a context or an operator has
# none, the rest are words and numbers. A kind that is not in here, of whatever Python, is looked through whole.
PARTS: Mapping[type[ast.AST], tuple[str, ...]] = {
    ast.Name: (),
    ast.Constant: (),
    ast.Load: (),
    ast.Store: (),
    ast.Attribute: ("value",),
    ast.Call: ("func", "args", "keywords"),
    ast.keyword: ("value",),
    ast.BinOp: ("left", "right"),
    ast.UnaryOp: ("operand",),
    ast.BoolOp: ("values",),
    ast.Compare: ("left", "comparators"),
    ast.Subscript: ("value", "slice"),
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.Assign: ("targets", "value"),
    ast.AugAssign: ("target", "value"),
    ast.Expr: ("value",),
    ast.Return: ("value",),
    ast.If: ("test", "body", "orelse"),
    ast.For: ("target", "iter", "body", "orelse"),
    ast.arg: ("annotation",),
    ast.JoinedStr: ("values",),
}


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Those of ast.iter_child_nodes, in a third of its time."""
    for value in vars(node).values():
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item


def below(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """The children of all of these, of trees that the parser made, in their order; contexts and operators may be left
    out."""
    found: list[ast.AST] = []
    for node in nodes:
        names = PARTS.get(node.__class__)
        if names is None:
            found += children(node)
            continue
        for name in names:
            value = getattr(node, name)
            if value.__class__ is list:
                found += value
            elif value is not None:
                found.append(value)
    return found


@dataclass(frozen=True)
class Looked:
    """A tree with all its nodes, level by level and by kind: who looks for something need not walk. Nobody may change
    what is in it. Contexts and operators may be left out."""

    tree: ast.Module
    levels: tuple[list[ast.AST], ...]
    kinds: Mapping[type[ast.AST], list[Any]]  # no kind but those that are there


def looked(tree: ast.Module) -> Looked:
    level: list[ast.AST] = [tree]
    levels, kinds = [level], dict[type[ast.AST], list[Any]]()
    while level := below(level):
        levels.append(level)
    for node in itertools.chain.from_iterable(levels):
        kinds.setdefault(node.__class__, []).append(node)
    return Looked(tree, tuple(levels), kinds)


@functools.lru_cache(maxsize=2)
def shared_look(source: str) -> Looked:
    """Of a source's shared tree. Raises as `parse` does."""
    return looked(shared(source))


def every(tree: ast.AST) -> list[ast.AST]:
    """The node and all below it, level by level; contexts and operators may be left out."""
    found, level = [tree], [tree]
    while level := below(level):
        found += level
    return found
