"""Bit instructions: logic, lop3, shifts, funnel shifts, bit fields, counts, prmt, and moves of registers."""

from collections.abc import Callable
from itertools import product

import numpy as np

from kgen.gates.ptx.arith.record import UNSIGNED, Array, Entries, Function, Pure, halves, joined, raw, typed, width

WORD, FULL = np.uint32(32), np.uint32(0xFFFFFFFF)
MOVED = ("pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _simple(function: Callable[..., Array]) -> Function:
    return lambda *operands: (function(*operands),)


def shifted(a: Array, count: Array, kind: str, left: bool) -> Array:
    """a shifted by a u32 count; counts beyond the width act like the width."""
    bits = width(kind)
    value = typed(a, kind)
    beyond = count >= np.uint32(bits)
    if not beyond.any():
        by = count.astype(value.dtype)
        return raw(value << by if left else value >> by)
    by = np.minimum(count, np.uint32(bits - 1)).astype(value.dtype)
    result: Array = value << by if left else value >> by
    if not left and kind[0] == "s":
        return result.view(a.dtype)  # the sign has filled it already
    return np.asarray(np.where(beyond, a.dtype.type(0), result))


def funnel(low: Array, high: Array, count: Array, left: bool, wrap: bool) -> Array:
    """32 bits out of high:low, shifted by the count modulo 32 or at most 32."""
    by = (count & np.uint32(31) if wrap else np.minimum(count, WORD)).astype(np.uint64)
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    return ((both << by) >> np.uint64(32) if left else both >> by).astype(np.uint32)


def ones(count: Array, bits: int) -> Array:
    """Words with the lowest `count` (0 to `bits`) bits set."""
    to, full = UNSIGNED[bits], UNSIGNED[bits]((1 << bits) - 1)
    room = (np.uint32(bits) - np.minimum(count, np.uint32(bits))).astype(to)
    return np.asarray(np.where(count == 0, to(0), full >> np.minimum(room, to(bits - 1))))


def extracted(a: Array, position: Array, length: Array, kind: str) -> Array:
    """`bfe`: `length` bits from `position`, extended with the field's highest bit if signed."""
    bits = width(kind)
    to, byte = UNSIGNED[bits], np.uint32(255)
    position, length = position & byte, length & byte
    field = shifted(a, position, f"u{bits}", left=False)
    mask = ones(length, bits)
    result = field & mask
    if kind[0] == "s":
        top = np.minimum(position + length - np.uint32(1), np.uint32(bits - 1)).astype(to)
        sign = (length != 0) & (((a >> top) & to(1)) != 0)
        valid = mask & ones(np.uint32(bits) - np.minimum(position, np.uint32(bits)), bits)
        result = np.where(sign, result | ~valid, result)
    return result


def inserted(a: Array, b: Array, position: Array, length: Array, bits: int) -> Array:
    """`bfi`: the low `length` bits of a put into b at `position`."""
    byte = np.uint32(255)
    position, length = position & byte, length & byte
    mask = shifted(ones(length, bits), position, f"b{bits}", left=True)
    return (b & ~mask) | (shifted(a, position, f"b{bits}", left=True) & mask)


def _mask(a: Array, b: Array, wrap: bool) -> Array:
    if wrap:
        a, b = a & np.uint32(31), b & np.uint32(31)
    return shifted(ones(b, 32), a, "b32", left=True)


def _extended(a: Array, count: Array, kind: str, wrap: bool) -> Array:
    """`szext`: the low `count` bits of a, extended."""
    count = count & np.uint32(31) if wrap else np.minimum(count, WORD)
    return extracted(a, np.zeros_like(count), count, kind)


def leading_zeros(a: Array) -> Array:
    """Zeros above the highest set bit, as u32."""
    bits = a.dtype.itemsize * 8
    left, zeros = a, np.zeros(a.shape, np.uint32)
    step = bits // 2
    while step:
        empty = (left >> a.dtype.type(bits - step)) == 0
        zeros = np.where(empty, zeros + np.uint32(step), zeros)
        left = np.where(empty, left << a.dtype.type(step), left)
        step //= 2
    return np.where(a == 0, np.uint32(bits), zeros)


def _found(a: Array, kind: str, shift: bool) -> Array:
    """`bfind`: position of the highest bit that is not the sign; with `shift`, the shift that brings it to the top."""
    value = np.where(typed(a, kind) < 0, ~a, a) if kind[0] == "s" else a
    zeros = leading_zeros(value)
    return np.where(value == 0, FULL, zeros if shift else np.uint32(width(kind) - 1) - zeros)


def _nth(mask: Array, base: Array, offset: Array) -> Array:
    """`fns`: position of the |offset|-th set bit from `base`, upward if offset > 0; all ones if there is none."""
    mask, base, step = np.broadcast_arrays(mask, base, offset.view(np.int32))
    positions = np.arange(32, dtype=np.int64)
    is_set = ((mask[..., None] >> positions.astype(np.uint32)) & np.uint32(1)) != 0
    start, up = base.astype(np.int64)[..., None], (step >= 0)[..., None]
    seen = is_set & np.where(up, positions >= start, positions <= start)
    order = np.where(up, np.cumsum(seen, -1), np.cumsum(seen[..., ::-1], -1)[..., ::-1])
    wanted = np.maximum(np.abs(step.astype(np.int64)), 1)[..., None]
    hit = seen & (order == wanted) & ((step != 0)[..., None] | (positions == start))
    return np.where(hit.any(-1), hit.argmax(-1).astype(np.uint32), FULL)


def _reversed(a: Array) -> Array:
    bits, value = a.dtype.itemsize * 8, a
    step = bits // 2
    while step:
        low = sum(((1 << step) - 1) << at for at in range(0, bits, 2 * step))
        mask, by = a.dtype.type(low), a.dtype.type(step)
        value = ((value & mask) << by) | ((value >> by) & mask)
        step //= 2
    return value


PAIRED: tuple[Callable[[Array, Array], Array], ...] = (  # functions of two bits by their table, (1, 1) the top bit
    lambda b, c: np.zeros_like(b & c),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, c: ~b | (c & ~c),
    lambda b, c: b & ~c,
    lambda b, c: ~c | (b & ~b),
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda b, c: c | (b & ~b),
    lambda b, c: ~b | c,
    lambda b, c: b | (c & ~c),
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, c: ~np.zeros_like(b & c),
)


def looked_up(a: Array, b: Array, c: Array, table: Array) -> Array:
    """`lop3`: bit i of the result is bit (a_i b_i c_i) of the table, which is an immediate: one for all lanes."""
    code = int(table.flat[0])
    low, high = code & 15, code >> 4 & 15
    if low == high:
        return PAIRED[low](b, c) | (a & ~a)
    if low == high ^ 15:
        return a ^ PAIRED[low](b, c)
    return (a & PAIRED[high](b, c)) | (~a & PAIRED[low](b, c))


def _lop3_with(op: str) -> Function:
    def run(a: Array, b: Array, c: Array, table: Array, q: Array) -> tuple[Array, ...]:
        result = looked_up(a, b, c, table)
        return result, COMBINE[op](result != 0, q)

    return run


PERMUTATIONS = {  # bytes that the four output bytes take, lowest first, by the two bits of the selector
    "f4e": [[i + k for k in range(4)] for i in range(4)],
    "b4e": [[(i - k) % 8 for k in range(4)] for i in range(4)],
    "rc8": [[i] * 4 for i in range(4)],
    "ecl": [[max(i, k) for k in range(4)] for i in range(4)],
    "ecr": [[min(i, k) for k in range(4)] for i in range(4)],
    "rc16": [[2 * (i % 2), 2 * (i % 2) + 1] * 2 for i in range(4)],
}


def permuted(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """`prmt`: four bytes out of b:a, each by its nibble of the selector (its top bit: spread the byte's sign)."""
    if mode:
        a, b, selector = np.broadcast_arrays(a, b, selector)
        pool = np.concatenate([halves(a, 8), halves(b, 8)], axis=-1)
        index = np.array(PERMUTATIONS[mode])[(selector & np.uint32(3)).astype(np.int64)]
        return joined(np.take_along_axis(pool, index, -1), 32)
    if selector.size and (selector == selector.flat[0]).all():
        selector = selector.ravel()[:1]  # an immediate, nearly always
    pool = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros(1, np.uint32)
    for place in range(0, 16, 4):
        nibble = (selector >> np.uint32(place)) & np.uint32(15)
        byte = (pool >> ((nibble & np.uint32(7)) << np.uint32(3))).astype(np.uint8)
        spread = nibble > 7
        if spread.any():
            byte = np.where(spread, (byte.view(np.int8) >> 7).view(np.uint8), byte)
        result = result | (byte.astype(np.uint32) << np.uint32(2 * place))
    return result


def _logic() -> Entries:
    for kind in ("pred", "b16", "b32", "b64"):
        for op, combine in COMBINE.items():
            yield op, (kind,), Pure((kind, kind), (kind,), _simple(combine))
        yield "not", (kind,), Pure((kind,), (kind,), _simple(np.invert))
        if kind != "pred":
            yield "cnot", (kind,), Pure((kind,), (kind,), _simple(lambda a: (a == 0).astype(a.dtype)))
    words = ("b32",) * 3 + ("u32",)
    yield "lop3", ("", "b32"), Pure(words, ("b32",), _simple(looked_up))
    for op in ("and", "or"):
        yield "lop3", (op, "b32"), Pure((*words, "pred"), ("b32", "pred"), _lop3_with(op))


def _shifts() -> Entries:
    for kind in ("b16", "b32", "b64"):
        run = _simple(lambda a, n, kind=kind: shifted(a, n, kind, True))
        yield "shl", (kind,), Pure((kind, "u32"), (kind,), run)
    for sign, bits in product("bus", (16, 32, 64)):
        kind = f"{sign}{bits}"
        run = _simple(lambda a, n, kind=kind: shifted(a, n, kind, False))
        yield "shr", (kind,), Pure((kind, "u32"), (kind,), run)
    for side, mode in product(("l", "r"), ("wrap", "clamp")):
        run = _simple(lambda a, b, n, side=side, mode=mode: funnel(a, b, n, side == "l", mode == "wrap"))
        yield "shf", (side, mode, "b32"), Pure(("b32", "b32", "u32"), ("b32",), run)


def _fields() -> Entries:
    for kind in ("u32", "u64", "s32", "s64"):
        take = _simple(lambda a, p, n, kind=kind: extracted(a, p, n, kind))
        yield "bfe", (kind,), Pure((kind, "u32", "u32"), (kind,), take)
        for shift in ("", "shiftamt"):
            find = _simple(lambda a, kind=kind, shift=shift: _found(a, kind, bool(shift)))
            yield "bfind", (shift, kind), Pure((kind,), ("u32",), find)
    for bits in (32, 64):
        kind = f"b{bits}"
        put = _simple(lambda a, b, p, n, bits=bits: inserted(a, b, p, n, bits))
        yield "bfi", (kind,), Pure((kind, kind, "u32", "u32"), (kind,), put)
        count = _simple(lambda a: np.bitwise_count(a).astype(np.uint32))
        yield "popc", (kind,), Pure((kind,), ("u32",), count)
        yield "clz", (kind,), Pure((kind,), ("u32",), _simple(leading_zeros))
        yield "brev", (kind,), Pure((kind,), (kind,), _simple(_reversed))
    yield "fns", ("b32",), Pure(("b32", "b32", "s32"), ("b32",), _simple(_nth))
    for mode in ("wrap", "clamp"):
        mask = _simple(lambda a, b, mode=mode: _mask(a, b, mode == "wrap"))
        yield "bmsk", (mode, "b32"), Pure(("b32", "b32"), ("b32",), mask)
        for kind in ("u32", "s32"):
            extend = _simple(lambda a, n, kind=kind, mode=mode: _extended(a, n, kind, mode == "wrap"))
            yield "szext", (mode, kind), Pure((kind, "u32"), (kind,), extend)


def entries() -> Entries:
    """Every instruction of this file."""
    for part in (_logic, _shifts, _fields):
        yield from part()
    for mode in ("", *PERMUTATIONS):
        run = _simple(lambda a, b, c, mode=mode: permuted(a, b, c, mode))
        yield "prmt", ("b32", mode), Pure(("b32", "b32", "b32"), ("b32",), run)
    for kind in MOVED:
        yield "mov", (kind,), Pure((kind,), (kind,), _simple(lambda a: a))
