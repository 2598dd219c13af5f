"""Numbers of an op's formulas that no argument carries, e.g. the two constants of an activation: name -> value.

They are read off the op's reference: float constants in capitals that it, or a function of kgen that it calls, uses.
Whole numbers are left out: they are sizes, which stand in the op's dims and shapes.
"""

import types
from collections.abc import Iterator, Mapping
from functools import cache

from kgen.contract import Op

OURS = "kgen."


@cache
def of_formulas(op: type[Op]) -> Mapping[str, float]:
    """In the order of their names."""
    found: dict[str, float] = {}
    left, seen = [op.reference], set[object]()
    while left:
        function = left.pop()
        if not isinstance(function, types.FunctionType) or function in seen:
            continue
        seen.add(function)
        for name, value in _used(function, op):
            if isinstance(value, float) and name.isupper():
                found[name] = value
            elif isinstance(value, types.FunctionType) and value.__module__.startswith(OURS):
                left.append(value)
    return dict(sorted(found.items()))


def _used(function: types.FunctionType, op: type[Op]) -> Iterator[tuple[str, object]]:
    """Names that a function reads, with their values: globals, attributes of modules of kgen, methods of the op."""
    names = [name for code in _codes(function.__code__) for name in code.co_names]
    known = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [m for m in known if isinstance(m, types.ModuleType) and m.__name__.startswith(OURS)]
    for name in names:
        for space in (function.__globals__, vars(op), *(vars(m) for m in modules)):
            if name in space:
                yield name, space[name]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
