"""Extended precision: add, sub and mad that write the condition code CC.CF, and those that read it.

The condition code is a predicate of its own: last operand where an instruction reads it, last result where it writes
it. After `sub.cc` and `subc.cc` it holds the borrow.
"""

from collections.abc import Callable
from itertools import product

from kgen.gates.ptx.arith.integer import products
from kgen.gates.ptx.arith.record import Array, Entries, Function, Pure

KINDS = ("u32", "s32", "u64", "s64")
Sum = tuple[Array, Array]


def _added(a: Array, b: Array, carry: Array | None) -> Sum:
    total = a + b
    out = total < a
    if carry is None:
        return total, out
    more = total + carry.astype(total.dtype)
    return more, out | (more < total)


def _subtracted(a: Array, b: Array, borrow: Array | None) -> Sum:
    rest = a - b
    out = a < b
    if borrow is None:
        return rest, out
    less = rest - borrow.astype(rest.dtype)
    return less, out | (less > rest)


def _step(function: Callable[..., Sum], reads: bool, writes: bool) -> Function:
    def run(*operands: Array) -> tuple[Array, ...]:
        values, carry = (operands[:-1], operands[-1]) if reads else (operands, None)
        result, out = function(*values, carry)
        return (result, out) if writes else (result,)

    return run


def _pure(kind: str, count: int, function: Callable[..., Sum], reads: bool, writes: bool) -> Pure:
    operands = (kind,) * count + (("pred",) if reads else ())
    results = (kind,) + (("pred",) if writes else ())
    return Pure(operands, results, _step(function, reads, writes), carry_in=reads, carry_out=writes)


def entries() -> Entries:
    """Every instruction of this file."""
    for kind in KINDS:
        for op, function in (("add", _added), ("sub", _subtracted)):
            yield op, ("cc", kind), _pure(kind, 2, function, False, True)
            for cc in ("", "cc"):
                yield op + "c", (cc, kind), _pure(kind, 2, function, True, bool(cc))
        for half, cc in product(("lo", "hi"), ("", "cc")):
            times = products(kind)[half]

            def fused(a: Array, b: Array, c: Array, carry: Array | None, times: Callable[..., Array] = times) -> Sum:
                return _added(times(a, b), c, carry)

            if cc:
                yield "mad", (half, cc, kind), _pure(kind, 3, fused, False, True)
            yield "madc", (half, cc, kind), _pure(kind, 3, fused, True, bool(cc))
