"""ld and st of all spaces, prefetches."""

import numpy as np

from kgen.gates.ptx.access import load, resolve, store
from kgen.gates.ptx.arith import width
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.plan import Decoder, sized
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.steps import order
from kgen.gates.ptx.syntax import Address, Instruction, Sym
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
ELEMENTS = {f"{sign}{bits}" for sign in "busf" for bits in (8, 16, 32, 64, 128)} | {"bf16", "f16x2", "bf16x2"}
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
# what changes nothing here: hints for caches
HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "unified")
ORDER = ("volatile", "relaxed", "acquire", "release", "mmio", "cta", "cluster", "gpu", "sys")


def form(i: Instruction) -> tuple[str, int, str]:
    """(space or "", elements, type of one). Raises UnsupportedError for modifiers that are not known."""
    space, count = "", 1
    kind = i.modifiers[-1]
    for m in i.modifiers[:-1]:
        if m in SPACES:
            space = m
        elif m in VECTORS:
            count = VECTORS[m]
        elif not (m in HINTS or m in ORDER or m.startswith(("L1::", "L2::"))):
            raise UnsupportedError(i, f"modifier .{m}")
    try:
        width(kind)
    except KeyError:
        raise UnsupportedError(i, f"type .{kind}") from None
    return space, count, kind


def _parameter(d: Decoder, i: Instruction, count: int, kind: str) -> Step | None:
    """ld.param of a fixed place, read from the launch's bytes."""
    address = i.operands[1]
    if not isinstance(address, Address) or not isinstance(address.base, Sym):
        return None
    if address.base.name not in d.params:
        raise PtxError(i.line, f"parameter {address.base.name[:60]} is not known")
    start, size = d.params[address.base.name]
    each = width(kind) // 8
    if not 0 <= address.offset <= size - each * count:
        raise PtxError(i.line, f"offset {address.offset} is outside of the parameter")
    start += address.offset
    numbers = [d.number(o, i) for o in d.items(i.operands[0])]

    def step(m: "Machine", g: Group) -> Ended:
        for at, number in enumerate(numbers):
            value = m.parameter(g, start + at * each, each)
            if number >= 0:
                m.registers[number] = g.write(m.registers[number], sized(value, kind, d.bits(number)))
        return None

    return step


def ld(d: Decoder, i: Instruction) -> Step:
    space, count, kind = form(i)
    if space.startswith("param") and (fixed := _parameter(d, i, count, kind)):
        return fixed
    address = d.address(i.operands[1], i)
    numbers = [d.number(o, i) for o in d.items(i.operands[0])]
    bits = [d.bits(n) if n >= 0 else 0 for n in numbers]
    if len(numbers) != count:
        raise PtxError(i.line, f"{count} registers are loaded, {len(numbers)} named")
    each = width(kind) // 8
    scope, acquires = order.scope(i), "acquire" in i.modifiers
    where = "const" if space == "const" else "" if space.startswith("param") else space

    def step(m: "Machine", g: Group) -> Ended:
        addresses = address(m, g)
        if space.startswith("param"):
            addresses = addresses + np.uint64(1 << 60)
        got = load(m, where, addresses, g.index, each * count, scope)
        if scope:
            for target in resolve(m, where, addresses, g.index, each * count, False):
                order.heard(m, target, acquires, scope)
        for number, value, size in zip(numbers, _columns(got, count, each), bits, strict=True):
            if number >= 0:
                m.registers[number] = g.put(m.registers[number], sized(value, kind, size))
        return None

    return step


def _columns(got: Array, count: int, each: int) -> list[Array]:
    """Elements of `each` bytes of every access."""
    if count == 1 and each <= 8:
        return [got]
    if each == 16:
        return [np.ascontiguousarray(got).view(np.uint64)]
    table = np.ascontiguousarray(got).view(f"u{each}").reshape(len(got), count)
    return list(np.ascontiguousarray(table.T))


def rows(columns: list[Array], each: int) -> Array:
    """Inverse of `_columns`."""
    if len(columns) == 1:
        return columns[0] if each <= 8 else np.ascontiguousarray(columns[0]).view(np.uint32)
    whole = np.ascontiguousarray(np.stack(columns, axis=1))
    size = whole.shape[1] * each
    if size <= 8:
        return whole.view(f"u{size}")[:, 0]
    return whole.view(np.uint32)


def st(d: Decoder, i: Instruction) -> Step:
    space, count, kind = form(i)
    address = d.address(i.operands[0], i)
    items = d.items(i.operands[1])
    if len(items) != count:
        raise PtxError(i.line, f"{count} values are stored, {len(items)} named")
    each = width(kind) // 8
    narrow = "b" + str(width(kind))
    sources = [d.picked(o, narrow, i) for o in items]
    scope, releases = order.scope(i), "release" in i.modifiers

    def step(m: "Machine", g: Group) -> Ended:
        addresses = address(m, g)
        values = rows([read(m, g) for read in sources], each)
        if scope:
            for target in resolve(m, space, addresses, g.index, each * count, True):
                order.tell(m, target, releases, False, scope)
        store(m, space, addresses, g.index, each * count, values, scope)
        return None

    return step


def element(i: Instruction) -> str:
    """The type of an atomic's elements; ptxas wants it before the operation where there is a vector."""
    return next((m for m in reversed(i.modifiers) if m in ELEMENTS), i.modifiers[-1])


def widths(i: Instruction) -> tuple[str, int] | None:
    """(space, bytes of the narrowest part) that an instruction touches; None for no memory."""
    if i.opcode in ("ld", "ldu", "st", "atom", "red"):
        kind = element(i) if i.opcode in ("atom", "red") else i.modifiers[-1]
        space = next((m for m in i.modifiers if m in SPACES), "")
        if space in ("local", "const") or space.startswith("param"):
            return None
        try:
            bits = width(kind)
        except KeyError:
            bits = 32
        if kind in ("f16x2", "bf16x2"):
            bits = 16
        count = next((VECTORS[m] for m in i.modifiers if m in VECTORS), 1) if i.opcode in ("ld", "ldu", "st") else 1
        return space.partition("::")[0] or "generic", min(bits // 8 * count, 16)
    return None
