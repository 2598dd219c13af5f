"""A source without the values of its tables: what points of one template, and tuned constants, have in common.

    found = once("shape", source, of_nodes)     what depends on structure and names alone, worked out once for them all

Only literals that are assigned at the top level are left out, and how they nest stays. Two sources with one skeleton
have the same tokens but for the values in these literals: a form begins with a character that Python has nowhere but in
texts and comments, so that no source can spell one out. Not covered: anything for which values count, as for builds.
"""

import ast
import functools
from collections.abc import Callable, Hashable
from typing import TypeVar

from kgen.gates.parsing import Looked, shared, shared_look
from kgen.store.documents import KEPT

R = TypeVar("R")
FORM = b"?"


def once(name: Hashable, source: str, make: Callable[[Looked], R]) -> R:
    """`make` of the source's nodes, or of an earlier source's with the same skeleton: what it gives may depend on
    names, structure and lines. `name` says what is made; it is a function where there may be another one under the
    same words, as in an edited copy of a module. Raises UNPARSABLE."""
    return KEPT.made(name, skeleton(source), lambda _: make(shared_look(source)))


@functools.lru_cache(maxsize=8)
def skeleton(source: str) -> bytes:
    """The text with the form of every literal in its place; lines keep their numbers. Raises UNPARSABLE."""
    tree, text = shared(source), source.encode("utf-8", "surrogatepass")
    if b"\r" in text:  # the parser counts lines by these too
        return text
    lines = [0]
    for line in text.split(b"\n"):
        lines.append(lines[-1] + len(line) + 1)
    pieces, done = [], 0
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        form = _form(value) if value is not None else ""
        if value is None or not form:
            continue
        last, offset = value.end_lineno or value.lineno, value.end_col_offset or 0
        pieces += [text[done : lines[value.lineno - 1] + value.col_offset], FORM + form.encode()]
        pieces.append(b"\n" * (last - value.lineno))
        done = lines[last - 1] + offset
    return b"".join([*pieces, text[done:]])


def _form(node: ast.expr) -> str:
    """How a literal nests, "" for anything else."""
    if isinstance(node, ast.Constant):
        return "0"
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        return f"{type(node.op).__name__} 0"
    parts: list[ast.expr | None] = []
    if isinstance(node, ast.Tuple | ast.List):
        parts += node.elts
    elif isinstance(node, ast.Dict):
        parts += [part for item in zip(node.keys, node.values, strict=True) for part in item]
    else:
        return ""
    forms = [_form(part) if part is not None else "" for part in parts]
    return f"{type(node).__name__}({','.join(forms)})" if all(forms) else ""
