"""Every entry of the table of register-only PTX instructions against a definition of its own, in exact arithmetic."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from support import ptx_converts, ptx_floats, ptx_integers
from support.ptx_integers import Lane
from support.ptx_numbers import LAYOUT, bits_of, flushed, read, signed

from kgen.gates.ptx.arith import Pure, lookup, supported, table, width

LANES = {"set": 16, "setp": 16}  # they have most of the forms, and the simplest ones
TABLE = table()
OPCODES = sorted({opcode for opcode, _ in TABLE})
DTYPES = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def definition(opcode: str, modifiers: tuple[str, ...]) -> Lane | None:
    """The independent definition of an exact entry."""
    for module in (ptx_converts, ptx_floats, ptx_integers):
        found = module.define(opcode, modifiers)
        if found:
            return found
    return None


def float_codes(form: str) -> list[int]:
    """Codes at the edges: zeros, subnormals, ones, powers, halves, the largest, infinities, NaN with payloads."""
    exponent_bits, fraction_bits = LAYOUT[form]
    middle, top = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    exponents = {0, 1, 2, *(middle + d for d in (-25, -11, -8, -1, 0, 1, 7, 15, 16, 31, 63)), top - 1, top}
    ones = (1 << fraction_bits) - 1
    fractions = {0, 1, ones, ones - 1, 1 << (fraction_bits - 1), (1 << (fraction_bits - 1)) + 1, ones >> 1}
    codes = [e << fraction_bits | f for e in sorted(exponents) if 0 <= e <= top for f in sorted(fractions)]
    return codes + [1 << (exponent_bits + fraction_bits) | c for c in codes]


def integer_codes(bits: int) -> list[int]:
    near = [(1 << b) + d for b in range(0, bits, 8) for d in (-1, 0, 1)]
    top = [(1 << (bits - 1)) + d for d in (-1, 0, 1)]
    return sorted({x & (1 << bits) - 1 for n in near + top for x in (n, -n)})


def draw(kind: str, rng: random.Random, count: int) -> list[int]:
    """Operand bits of a type: edges, any bits, and small or ordinary values, a third each."""
    bits = width(kind)
    element = kind.removesuffix("x2")
    if kind.endswith("x2") and element in LAYOUT and element in ptx_floats.FORMS:
        low, high = draw(element, rng, count), draw(element, rng, count)
        return [h << bits_of(element) | v for h, v in zip(high, low, strict=True)]
    floating = kind in LAYOUT
    edges = float_codes(kind) if floating else integer_codes(bits)
    out = []
    for _ in range(count):
        ordinary = rng.randrange(70)
        if floating:
            exponent_bits, fraction_bits = LAYOUT[kind]
            spread = rng.randrange(-12, 13) + (1 << (exponent_bits - 1)) - 1
            exponent = min(max(spread, 0), (1 << exponent_bits) - 1)
            ordinary = rng.getrandbits(1) << (bits - 1) | exponent << fraction_bits | rng.getrandbits(fraction_bits)
        out.append(rng.choice([rng.choice(edges), rng.getrandbits(bits), ordinary & (1 << bits) - 1]))
    return out


def operands(opcode: str, pure: Pure, rng: random.Random, count: int) -> list[list[int]]:
    """One list per operand; those with a range of their own stay in it."""
    columns = [draw(kind, rng, count) for kind in pure.operands]
    if opcode == "lop3":
        columns[3] = [rng.randrange(256)] * count  # an immediate
    if opcode == "fns":
        columns[1] = [rng.randrange(32) for _ in range(count)]
        columns[2] = [rng.randrange(-9, 10) & 0xFFFFFFFF for _ in range(count)]
    return columns


def arrays(columns: list[list[int]], kinds: tuple[str, ...]) -> list[np.ndarray]:
    out = []
    for column, kind in zip(columns, kinds, strict=True):
        if kind == "b128":
            words = [[c & (1 << 64) - 1, c >> 64] for c in column]
            out.append(np.array(words, np.uint64))
        else:
            out.append(np.array(column, DTYPES[width(kind)]))
    return out


def bits(result: np.ndarray, kind: str) -> list[int]:
    if kind == "b128":
        return [int(low) | int(high) << 64 for low, high in result]
    assert result.dtype == DTYPES[width(kind)]
    return [int(v) for v in result]


def disagreements(
    opcode: str, modifiers: tuple[str, ...], pure: Pure, define: Callable[..., tuple[int, ...]]
) -> list[str]:
    rng = random.Random(f"{opcode}.{modifiers}")
    columns = operands(opcode, pure, rng, LANES.get(opcode, 40))
    results = pure.function(*arrays(columns, pure.operands))
    got = list(zip(*(bits(r, k) for r, k in zip(results, pure.results, strict=True)), strict=True))
    rows = list(zip(*columns, strict=True))
    name = ".".join((opcode, *modifiers))
    return [
        f"{name} of {[hex(v) for v in row]}: {[hex(v) for v in have]}, by definition {[hex(v) for v in want]}"
        for row, have in zip(rows, got, strict=True)
        if have != (want := define(*row))
    ]


def test_every_exact_entry_has_a_definition_of_its_own() -> None:
    missing = [".".join((o, *m)) for (o, m), pure in TABLE.items() if pure.approximate is None and not definition(o, m)]
    assert not missing
    assert len(TABLE) > 4000


@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.filterwarnings("error")
def test_exact_entries_agree_with_their_definition_bit_for_bit(opcode: str) -> None:
    wrong = []
    for (name, modifiers), pure in TABLE.items():
        if name == opcode and pure.approximate is None:
            define = definition(name, modifiers)
            assert define is not None
            wrong += disagreements(name, modifiers, pure, define)
    assert not wrong, f"{len(wrong)} lanes, among them:\n" + "\n".join(wrong[:: max(1, len(wrong) // 12)])


APPROXIMATE = [(o, m) for (o, m), pure in TABLE.items() if pure.approximate is not None]


def exact_or_special(opcode: str, numbers: list[float]) -> float:
    """The function's value with the limits at poles and ends that IEEE arithmetic would give."""
    if any(math.isnan(x) for x in numbers):
        return math.nan
    x = numbers[0]
    ends: dict[str, Callable[[], float]] = {
        "rcp": lambda: math.copysign(0.0 if math.isinf(x) else math.inf, x),
        "div": lambda: _quotient_end(*numbers),
        "sqrt": lambda: x if x == 0 or x > 0 else math.nan,
        "rsqrt": lambda: math.copysign(math.inf, x) if x == 0 else 0.0 if x > 0 else math.nan,
        "ex2": lambda: math.inf if x > 0 else 0.0,
        "lg2": lambda: -math.inf if x == 0 else math.inf if x > 0 else math.nan,
        "sin": lambda: math.nan,
        "cos": lambda: math.nan,
        "tanh": lambda: math.copysign(1.0, x),
    }
    try:
        if all(math.isfinite(v) for v in numbers):
            return ptx_floats.approximation(opcode)(*numbers)
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    return ends[opcode]()


def _quotient_end(x: float, y: float) -> float:
    if (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return math.nan
    sign = math.copysign(1.0, x) * math.copysign(1.0, y)
    return math.copysign(0.0 if math.isinf(y) or x == 0 else math.inf, sign)


def real(code: int, form: str) -> float:
    number = read(code, form)
    if number.size == "nan":
        return math.nan
    if number.size == "inf":
        return -math.inf if number.sign else math.inf
    return float(signed(number)) if number.size else math.copysign(0.0, -1 if number.sign else 1)


@pytest.mark.parametrize(("opcode", "modifiers"), APPROXIMATE, ids=lambda v: v if isinstance(v, str) else ".".join(v))
@pytest.mark.filterwarnings("error")
def test_approximate_entries_are_within_their_documented_error(opcode: str, modifiers: tuple[str, ...]) -> None:
    pure = TABLE[opcode, modifiers]
    form = pure.results[0].removesuffix("x2")
    rng = random.Random(f"{opcode}.{modifiers}")
    columns = [draw(kind, rng, 400) for kind in pure.operands]
    got = bits(pure.function(*arrays(columns, pure.operands))[0], pure.results[0])
    for row, code in zip(zip(*columns, strict=True), got, strict=True):
        for at in range(0, width(pure.results[0]), bits_of(form)):
            lane = [c >> at & (1 << bits_of(form)) - 1 for c in row]
            numbers = [real(flush(c, form, modifiers), form) for c in lane]
            if opcode == "div" and modifiers[0] == "approx" and abs(numbers[1]) > 2.0**126:
                continue  # undefined beyond
            have = real(code >> at & (1 << bits_of(form)) - 1, form)
            want = exact_or_special(opcode, numbers)
            assert close(have, want, form, pure, "ftz" in modifiers), f"{opcode} of {numbers}: {have}, exact {want}"


def flush(code: int, form: str, modifiers: tuple[str, ...]) -> int:
    return flushed(code, form) if "ftz" in modifiers else code


def close(have: float, want: float, form: str, pure: Pure, ftz: bool) -> bool:
    """Within half a unit in the last place (the result is a rounding of the exact value) and the documented error."""
    if math.isnan(want) or math.isnan(have):
        return math.isnan(want) and math.isnan(have)
    exponent_bits, fraction_bits = LAYOUT[form]
    least = 2.0 ** (2 - (1 << (exponent_bits - 1)))
    if ftz and abs(want) < least:
        return have == 0 or abs(have) == least
    if math.isinf(have) or math.isinf(want):
        return have == want or abs(want) > 2.0 ** ((1 << (exponent_bits - 1)) - 1) * (2 - 2.0 ** -(fraction_bits + 1))
    unit = max(2.0 ** (math.frexp(want)[1] - 1 - fraction_bits), least * 2.0**-fraction_bits)
    allowed = {"ulp": unit, "relative": abs(want), "absolute": 1.0}[pure.error] * (pure.approximate or 0.0)
    error = abs(have - want)
    return (
        error <= unit * 0.5001
        and error <= max(allowed, unit * 0.5001)
        and math.copysign(1, have) == math.copysign(1, want)
    )


def test_unknown_opcodes_and_modifiers_are_not_guessed() -> None:
    for opcode, modifiers in [
        ("frobnicate", ("b32",)),
        ("add", ("f8",)),
        ("fma", ("f32",)),
        ("fma", ("rn", "oob", "bf16")),
        ("add", ("f32", "rn")),
        ("setp", ("lo", "s32")),
        ("setp", ("lt", "b32")),
        ("cvt", ("f16", "f32")),
        ("cvt", ("rn", "satfinite", "ue8m0x2", "f32")),
        ("cvt", ("rs", "f16x2", "f32")),
        ("lop3", ("xor", "b32")),
        ("mul", ("u32",)),
        ("add", ()),
    ]:
        assert lookup(opcode, modifiers) is None, (opcode, modifiers)


def test_the_number_of_operands_chooses_between_forms() -> None:
    two, three = lookup("min", ("f32",), 2), lookup("min", ("f32",), 3)
    assert two is lookup("min", ("f32",)) and two is not None and three is not None
    assert (len(two.operands), len(three.operands)) == (2, 3)
    assert lookup("add", ("f32",), 3) is None and lookup("min", ("f16",), 3) is None


@pytest.mark.parametrize("opcode", ["min", "max"])
@pytest.mark.parametrize("modifiers", [(), ("NaN",), ("ftz",), ("abs",), ("ftz", "NaN", "abs")])
def test_three_operand_extrema_agree_with_their_definition(opcode: str, modifiers: tuple[str, ...]) -> None:
    pure = lookup(opcode, (*modifiers, "f32"), 3)
    define = ptx_floats.define(opcode, (*modifiers, "f32"))
    assert pure is not None and define is not None
    assert not disagreements(opcode, (*modifiers, "f32"), pure, define)


def test_the_compact_table_counts_every_form_once() -> None:
    lines = supported()
    assert sum(line.forms for line in lines if line.operands != 3 or line.opcode not in ("min", "max")) == len(TABLE)
    fma = [line.modifiers for line in lines if line.opcode == "fma"]
    assert ".{rm,rn,rp,rz}.f64" in fma and ".rn.relu.{bf16,bf16x2,f16,f16x2}" in fma
    assert {line.approximate for line in lines if line.opcode == "rcp"} == {None, 1.0}
