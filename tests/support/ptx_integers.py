"""Integer and bit instructions of PTX in Python integers, one lane at a time: an independent definition for tests.

`define` gives, for an opcode and its modifiers, a function from operand bits to a tuple of result bits, or None.
"""

import re
from collections.abc import Callable

Lane = Callable[..., tuple[int, ...]]
INTEGER = re.compile(r"([usb])(16|32|64)$")
BOOLEAN: dict[str, Callable[[int, int], int]] = {
    "and": lambda p, q: p & q,
    "or": lambda p, q: p | q,
    "xor": lambda p, q: p ^ q,
}


def mask(bits: int) -> int:
    return (1 << bits) - 1


def value(code: int, kind: str) -> int:
    """An integer type's value."""
    bits = int(kind[1:])
    return code - (1 << bits) if kind[0] == "s" and code >> (bits - 1) else code


def parts(code: int, size: int, bits: int) -> list[int]:
    return [code >> at & mask(size) for at in range(0, bits, size)]


def packed(values: list[int], size: int) -> int:
    return sum((v & mask(size)) << (size * i) for i, v in enumerate(values))


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _arithmetic(opcode: str, kind: str) -> Lane | None:
    """Instructions whose only modifier is a type."""
    bits = int(kind[1:])

    def wrap(function: Callable[..., int]) -> Lane:
        return lambda *codes: (function(*(value(c, kind) for c in codes)) & mask(bits),)

    simple: dict[str, Callable[..., int]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "div": lambda a, b: truncated(a, b) if b else -1,
        "rem": lambda a, b: a - b * truncated(a, b) if b else -1,
        "min": min,
        "max": max,
        "sad": lambda a, b, c: c + abs(a - b),
        "abs": abs,
        "neg": lambda a: -a,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "not": lambda a: ~a,
        "cnot": lambda a: int(a == 0),
        "popc": lambda a: bin(a).count("1"),
        "clz": lambda a: bits - a.bit_length(),
        "brev": lambda a: int(f"{a:0{bits}b}"[::-1], 2),
        "mov": lambda a: a,
    }
    if opcode in ("shl", "shr"):
        shift = (lambda a, n: a << n) if opcode == "shl" else (lambda a, n: a >> n)
        return lambda a, n: (shift(value(a, kind), min(n, bits)) & mask(bits),)
    if opcode == "bfe":
        return lambda a, p, n: (_field(a, p & 255, n & 255, kind),)
    if opcode == "bfi":
        return lambda a, b, p, n: (_put(a, b, p & 255, n & 255, bits),)
    if opcode == "fns":
        return lambda m, b, o: (_nth(m, b, value(o, "s32")),)
    if opcode == "bfind":
        return lambda a: (_highest(value(a, kind)),)
    return wrap(simple[opcode]) if opcode in simple else None


def _highest(a: int) -> int:
    a = ~a if a < 0 else a
    return a.bit_length() - 1 if a else mask(32)


def _field(a: int, position: int, length: int, kind: str) -> int:
    bits = int(kind[1:])
    top = min(position + length - 1, bits - 1)
    spread = a >> top & 1 if kind[0] == "s" and length else 0
    return sum((a >> (position + i) & 1 if i < length and position + i < bits else spread) << i for i in range(bits))


def _put(a: int, b: int, position: int, length: int, bits: int) -> int:
    for i in range(length):
        if position + i < bits:
            b = b & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
    return b


def _nth(bits: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if bits >> base & 1 else mask(32)
    step, left, at = (1 if offset > 0 else -1), abs(offset), base
    while 0 <= at < 32:
        left -= bits >> at & 1
        if left == 0:
            return at
        at += step
    return mask(32)


def _multiply(opcode: str, modifiers: tuple[str, ...]) -> Lane | None:
    half, kind = modifiers[0], modifiers[-1]
    if half not in ("lo", "hi", "wide"):
        return None
    bits = int(kind[1:])
    shift, size = {"lo": (0, bits), "hi": (bits, bits), "wide": (0, 2 * bits)}[half]

    def run(a: int, b: int, *rest: int) -> tuple[int, ...]:
        if opcode in ("mul24", "mad24"):
            x, y = (value(v & mask(24), kind[0] + "24") for v in (a, b))
            full = x * y >> (16 if half == "hi" else 0)
        else:
            full = value(a, kind) * value(b, kind) >> shift
        if opcode in ("mul", "mul24"):
            return (full & mask(size),)
        if "sat" in modifiers:
            low = value(full & mask(32), "s32")
            return (clamp(low + value(rest[0], "s32"), -(1 << 31), mask(31)) & mask(32),)
        out = (full & mask(size)) + rest[0] + (rest[1] if opcode == "madc" else 0)
        return (out & mask(size), out >> size) if "cc" in modifiers else (out & mask(size),)

    return run


def _carried(opcode: str, modifiers: tuple[str, ...]) -> Lane:
    bits, minus = int(modifiers[-1][1:]), opcode.startswith("sub")

    def run(a: int, b: int, carry: int = 0) -> tuple[int, ...]:
        out = a - b - carry if minus else a + b + carry
        over = int(out < 0 or out > mask(bits))
        return (out & mask(bits), over) if "cc" in modifiers else (out & mask(bits),)

    return run


def _prmt(mode: str) -> Lane:
    def run(a: int, b: int, c: int) -> tuple[int, ...]:
        pool = parts(b << 32 | a, 8, 64)
        i = c & 3
        chosen = {
            "f4e": [pool[i + k] for k in range(4)],
            "b4e": [pool[i - k] for k in range(4)],
            "rc8": [pool[i]] * 4,
            "ecl": [pool[k] if k > i else pool[i] for k in range(4)],
            "ecr": [pool[k] if k < i else pool[i] for k in range(4)],
            "rc16": pool[0:2] * 2 if i in (0, 2) else pool[2:4] * 2,
        }.get(mode)
        if chosen is None:
            nibbles = parts(c & 0xFFFF, 4, 16)
            chosen = [(255 if pool[n & 7] > 127 else 0) if n & 8 else pool[n & 7] for n in nibbles]
        return (packed(chosen, 8),)

    return run


def _dot(opcode: str, modifiers: tuple[str, ...]) -> Lane:
    first, second = modifiers[-2:]
    size = 8 if opcode == "dp4a" else 16

    def run(a: int, b: int, c: int) -> tuple[int, ...]:
        x = [value(v, first[0] + str(size)) for v in parts(a, size, 32)]
        y = [value(v, second[0] + "8") for v in parts(b, 8, 32)]
        y = y[2:] if modifiers[0] == "hi" else y
        return (sum(p * q for p, q in zip(x, y, strict=False)) + c & mask(32),)

    return run


def _lop3(op: str) -> Lane:
    def run(a: int, b: int, c: int, table: int, *q: int) -> tuple[int, ...]:
        out = sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))
        return (out, BOOLEAN[op](int(out != 0), q[0])) if q else (out,)

    return run


def _masked(opcode: str, mode: str, kind: str) -> Lane:
    def start(a: int) -> int:
        return a & 31 if mode == "wrap" else min(a, 32)

    if opcode == "bmsk":
        return lambda a, b: (mask(start(b)) << start(a) & mask(32),)
    return lambda a, b: (_field(a, 0, start(b), kind),)


def _funnel(side: str, mode: str) -> Lane:
    def run(a: int, b: int, c: int) -> tuple[int, ...]:
        n, both = c % 32 if mode == "wrap" else min(c, 32), b << 32 | a
        return ((both << n >> 32 if side == "l" else both >> n) & mask(32),)

    return run


def _pairs(opcode: str, modifiers: tuple[str, ...]) -> Lane:
    kind = modifiers[-1].removesuffix("x2")
    bits = int(kind[1:])
    function: Callable[[int, int], int] = {"min": min, "max": max, "add": lambda a, b: a + b}[opcode]

    def one(a: int, b: int) -> int:
        out = function(value(a, kind), value(b, kind))
        return max(out, 0) if "relu" in modifiers else out

    if modifiers[-1] == kind:
        return lambda a, b: (one(a, b) & mask(bits),)
    return lambda a, b: (packed([one(x, y) for x, y in zip(parts(a, 16, 32), parts(b, 16, 32), strict=True)], 16),)


def define(opcode: str, modifiers: tuple[str, ...]) -> Lane | None:
    """The definition of an integer or bit instruction."""
    last = modifiers[-1]
    if opcode in ("mul", "mad", "madc", "mul24", "mad24") and last[0] in "us":
        return _multiply(opcode, modifiers)
    if opcode in ("add", "sub") and modifiers == ("sat", "s32"):
        sign = 1 if opcode == "add" else -1
        return lambda a, b: (clamp(value(a, last) + sign * value(b, last), -(1 << 31), mask(31)) & mask(32),)
    if opcode in ("addc", "subc") or "cc" in modifiers:
        return _carried(opcode, modifiers)
    if opcode in ("min", "max", "add") and (modifiers[0] == "relu" or last in ("u16x2", "s16x2")):
        return _pairs(opcode, modifiers)
    if opcode in BOOLEAN and last == "pred":
        return lambda a, b: (BOOLEAN[opcode](a, b),)
    other: dict[str, Callable[[], Lane]] = {
        "prmt": lambda: _prmt("" if last == "b32" else last),
        "dp4a": lambda: _dot(opcode, modifiers),
        "dp2a": lambda: _dot(opcode, modifiers),
        "lop3": lambda: _lop3(modifiers[0]),
        "shf": lambda: _funnel(modifiers[0], modifiers[1]),
        "bmsk": lambda: _masked(opcode, modifiers[0], "u32"),
        "szext": lambda: _masked(opcode, modifiers[0], last),
    }
    if opcode in other:
        return other[opcode]()
    if opcode == "bfind" and modifiers[0] == "shiftamt":
        return lambda a: (
            (mask(32) if _highest(value(a, last)) == mask(32) else int(last[1:]) - 1 - _highest(value(a, last))),
        )
    if opcode in ("not", "mov") and last in ("pred", "f32", "f64", "b128"):
        return lambda a: (1 - a if opcode == "not" else a,)
    return _arithmetic(opcode, last) if len(modifiers) == 1 and INTEGER.match(last) else None
