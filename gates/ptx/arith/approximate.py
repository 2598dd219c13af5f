"""Approximate functions: the value rounded from float64, with the error that the ISA documents for the hardware.

The hardware's own last bits are not specified, so an interpreter's result may differ from it within that bound; special
values (zeros, infinities, NaN, negative arguments) are exact. Not here: f64 approximations.
"""

from collections.abc import Callable

import numpy as np

from kgen.gates.ptx.arith.floats import canonical
from kgen.gates.ptx.arith.formats import FORMATS, decode, encode, flush
from kgen.gates.ptx.arith.record import Array, Entries, Function, Pure, halves, joined

BOUNDS32: dict[tuple[str, str], tuple[float, str]] = {
    ("rcp", "approx"): (1.0, "ulp"),
    ("sqrt", "approx"): (2.0**-23, "relative"),
    ("rsqrt", "approx"): (2.0**-22.9, "relative"),
    ("ex2", "approx"): (2.0, "ulp"),
    ("lg2", "approx"): (2.0**-22, "absolute"),  # within (0.5, 2); relative elsewhere
    ("sin", "approx"): (2.0**-20.5, "absolute"),  # within 2 pi; 2^-14.7 within 100 pi
    ("cos", "approx"): (2.0**-20.5, "absolute"),
    ("tanh", "approx"): (2.0**-11, "relative"),
    ("div", "approx"): (2.0, "ulp"),  # divisors of magnitude 2^-126 to 2^126
    ("div", "full"): (2.0, "ulp"),
}
BOUNDS16: dict[tuple[str, str], tuple[float, str]] = {
    ("tanh", "f16"): (2.0**-10.987, "absolute"),
    ("tanh", "bf16"): (2.0**-8, "absolute"),
    ("ex2", "f16"): (2.0**-9.9, "relative"),
    ("ex2", "bf16"): (2.0**-7, "relative"),
}
HUGE_DIVISOR = 2.0**126

FUNCTIONS: dict[str, Callable[..., Array]] = {
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": np.divide,
}


def _divided(a: Array, b: Array) -> Array:
    """`div.approx`: divisors above 2^126 give 0, or NaN for an infinite dividend."""
    return np.where((np.abs(b) > HUGE_DIVISOR) & np.isfinite(b), a * 0.0 * np.sign(b), a / b)


def _single(function: Callable[..., Array], ftz: bool) -> Function:
    def run(*operands: Array) -> tuple[Array, ...]:
        if ftz:
            operands = tuple(flush(a) for a in operands)
        with np.errstate(all="ignore"):
            result = canonical(function(*(decode(a, "f32") for a in operands)).astype(np.float32))
        return (flush(result) if ftz else result,)

    return run


def _half(function: Callable[..., Array], kind: str, ftz: bool) -> Function:
    element, packed = kind.removesuffix("x2"), kind.endswith("x2")

    def run(a: Array) -> tuple[Array, ...]:
        part = halves(a) if packed else a
        part = flush(part, element) if ftz else part
        with np.errstate(all="ignore"):
            result = encode(function(decode(part, element)), FORMATS[element])
        result = flush(result, element) if ftz else result
        return (joined(result, 32) if packed else result,)

    return run


def entries() -> Entries:
    """Every instruction of this file."""
    for (op, form), (bound, unit) in BOUNDS32.items():
        function = _divided if (op, form) == ("div", "approx") else FUNCTIONS[op]
        for ftz in ("",) if op == "tanh" else ("", "ftz"):
            kinds = ("f32",) * (2 if op == "div" else 1)
            yield op, (form, ftz, "f32"), Pure(kinds, ("f32",), _single(function, bool(ftz)), bound, unit)
    for (op, element), (bound, unit) in BOUNDS16.items():
        ftz = "ftz" if (op, element) == ("ex2", "bf16") else ""
        for kind in (element, element + "x2"):
            run = _half(FUNCTIONS[op], kind, bool(ftz))
            yield op, ("approx", ftz, kind), Pure((kind,), (kind,), run, bound, unit)
