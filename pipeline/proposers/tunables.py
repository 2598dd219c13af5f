"""Constants that a candidate declares as tunable, read from its syntax tree and rewritten in place.

    TUNABLES = {"THREADS": (128, 256, 512), "UNROLL": (1, 2, 4)}    # a literal: names of module constants -> values
    THREADS, UNROLL = 256, 2                                        # each bound once, to one of its values

    read(source) -> Tunables       raises Declared (one line: what is wrong and what is allowed)
    rewritten(source, tunables, point) -> source with other constants, every other byte as it was

Nothing of the candidate is run. Not covered: whether a variant builds or is right (the gates).
"""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kgen.gates.parsing import UNPARSABLE, parse
from kgen.proposers.families.space import Choice, Point, Space

NAME = "TUNABLES"
MOST_NAMES, MOST_VALUES, MOST_TEXT = 16, 64, 80
Scalar = bool | int | float | str


class Declared(ValueError):
    """A declaration that cannot be used: one line."""


@dataclass(frozen=True)
class Constant:
    """Where a constant's value stands: byte offsets in the source's UTF-8, and the value."""

    start: int
    end: int
    value: Scalar


@dataclass(frozen=True)
class Tunables:
    """`constants` and `space` have the same names, in the order of the declaration."""

    constants: Mapping[str, Constant]
    space: Space

    @property
    def point(self) -> Point:
        """What the source says now."""
        return {name: constant.value for name, constant in self.constants.items()}


def read(source: str) -> Tunables:
    """Raises Declared."""
    if "\r" in source:
        raise Declared("carriage returns: lines must end in LF alone")
    try:
        tree = parse(source)
    except UNPARSABLE as error:
        raise Declared(f"this is no Python source: {type(error).__name__}: {error}".splitlines()[0]) from None
    choices = {name: _values(name, node) for name, node in _declaration(tree)}
    if not 1 <= len(choices) <= MOST_NAMES:
        raise Declared(f"{NAME} must name 1 to {MOST_NAMES} constants, it names {len(choices)}")
    starts = _starts(source)
    constants = {name: _constant(tree, name, values, starts) for name, values in choices.items()}
    parameters = tuple(Choice(name, values) for name, values in choices.items())
    return Tunables(constants, Space("tunables", "", parameters))


def rewritten(source: str, tunables: Tunables, point: Point) -> str:
    """Raises Declared for a point that the declaration does not allow."""
    if wrong := tunables.space.complaints(point):
        raise Declared(wrong[0])
    data = source.encode("utf-8")
    for name, constant in sorted(tunables.constants.items(), key=lambda item: -item[1].start):
        if point[name] != constant.value:
            data = data[: constant.start] + _literal(point[name]).encode("utf-8") + data[constant.end :]
    made = data.decode("utf-8")
    if read(made).point != point:
        raise Declared(f"the constants cannot be rewritten safely: {point} did not come back")
    return made


def _declaration(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """Names and value expressions of the one literal."""
    found = [s for s in tree.body if _target(s) == NAME]
    if len(found) != 1 or sum(name == NAME for name, _ in _bindings(tree)) != 1:
        example = f'{NAME} = {{"THREADS": (128, 256)}}'
        raise Declared(f"a candidate to be tuned binds {NAME} exactly once, at its top level, e.g. {example}")
    literal = found[0].value  # type: ignore[attr-defined]
    if not isinstance(literal, ast.Dict):
        raise Declared(f"{NAME} must be a literal dict of names and tuples of values")
    pairs = []
    for key, value in zip(literal.keys, literal.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier()):
            raise Declared(f"line {value.lineno}: a key of {NAME} must be the name of a constant, as a plain string")
        if key.value == NAME or key.value.startswith("__"):
            raise Declared(f"line {value.lineno}: {key.value} cannot be tuned")
        pairs.append((key.value, value))
    if len({name for name, _ in pairs}) != len(pairs):
        raise Declared(f"{NAME} names a constant twice")
    return pairs


def _target(statement: ast.stmt) -> str:
    """The name that a plain assignment binds, "" for anything else."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _values(name: str, node: ast.expr) -> tuple[Scalar, ...]:
    if not isinstance(node, ast.Tuple | ast.List):
        raise Declared(f"line {node.lineno}: the values of {name} must be a literal tuple or list")
    values = tuple(_scalar(name, item) for item in node.elts)
    if not 2 <= len(values) <= MOST_VALUES:
        raise Declared(f"line {node.lineno}: {name} needs 2 to {MOST_VALUES} values, it has {len(values)}")
    if len({type(v) for v in values}) > 1:
        raise Declared(f"line {node.lineno}: the values of {name} must all be of one type")
    if len(set(values)) != len(values):
        raise Declared(f"line {node.lineno}: a value of {name} stands there twice")
    return values


def _scalar(name: str, node: ast.expr) -> Scalar:
    """A literal int, float, bool or str; numbers may have a minus."""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    value = inner.value if isinstance(inner, ast.Constant) else None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    short = isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable()
    if number and inner is not node:
        return -value  # type: ignore[operator,return-value]
    if inner is not node or not (number or short or isinstance(value, bool)):
        raise Declared(f"line {node.lineno}: {name} may be a literal number, bool or short text only")
    return value  # type: ignore[return-value]


def _constant(tree: ast.Module, name: str, values: tuple[Scalar, ...], starts: list[int]) -> Constant:
    """The one place that binds the name: NAME = literal, or a tuple of names = a tuple of literals."""
    bound = sum(each == name for each, _ in _bindings(tree))
    nodes = [node for statement in tree.body for each, node in _assigned(statement) if each == name]
    if bound != 1:
        raise Declared(f"{name} must be bound exactly once in the whole file, it is bound {bound} times")
    if len(nodes) != 1:
        raise Declared(f"{name} must be bound by a plain assignment of a literal at the top level of the file")
    node, value = nodes[0], _scalar(name, nodes[0])
    if not Choice(name, values).holds(value):
        raise Declared(f"line {node.lineno}: {name} is {value!r}, which is none of the values that {NAME} gives it")
    assert node.end_lineno is not None and node.end_col_offset is not None  # ast.parse sets them
    return Constant(starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset, value)


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of an assignment whose values can be told apart."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for name, part in zip(target.elts, value.elts, strict=True):
            if isinstance(name, ast.Name):
                yield name.id, part


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Everything that gives a name a meaning anywhere: a constant that is also an argument is no constant."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name, node
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.alias(name=name, asname=asname):
                yield asname or name.split(".")[0], node
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node


def _starts(source: str) -> list[int]:
    """Byte offset of every line, as the syntax tree counts lines."""
    starts = [0]
    for line in source.encode("utf-8").split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _literal(value: Any) -> str:
    """As a candidate would write it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)
