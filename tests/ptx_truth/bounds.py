"""What may differ, and by how much: intervals of right values around a float64 evaluation of the same formula.

Open on the hardware are: how mma and wgmma sum (gates/ptx/matrix states a unit of sum |a b| + |c|), the last bits of
approximate functions (the errors that the ISA documents), the order of float atomics, and whether ptxas fuses a mul.f32
and an add.f32 that say no rounding. An interval takes the worst of each and rounds outwards, then to the output's own
format; where no rounding can go both ways it is one number, and then the two sides must agree to the bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from ptx_truth.entries import Array, Bound, bf16, numbers

from kgen.gates.ptx.arith import lookup
from kgen.gates.ptx.matrix.mma import Mma
from kgen.gates.ptx.matrix.wgmma import Wgmma
from kgen.ops.pack import SITU_BETA, SITU_LINEAR_BETA

Interval = tuple[Array, Array]
ADD = 2.0**-24  # of one float32 addition, relative to its result
MMA = Mma("bf16", "bf16", "f32", 16).unit
WGMMA = Wgmma(64, "bf16", "bf16", "f32").unit
SITU_ERROR = 2.0**-14  # relative: two tanh by ex2 and rcp, whose 1 - e cancels five bits at most, and a sigmoid
SUM_DEPTH = 20  # float32 additions that one product of attn_res goes through
EPSILON = 1e-5  # of attn_res here


def rounded(low: Array, high: Array) -> Interval:
    """Ends as bf16."""
    return numbers("bf16", bf16(low)), numbers("bf16", bf16(high))


def single(low: Array, high: Array) -> Interval:
    """Ends as float32, one step outwards: both sides round to the nearest themselves."""
    return (
        np.nextafter(low.astype(np.float32), np.float32(-np.inf)).astype(np.float64),
        np.nextafter(high.astype(np.float32), np.float32(np.inf)).astype(np.float64),
    )


@dataclass(frozen=True)
class Chain:
    """How an instruction walks along K: in `slices` equal parts that are added in float32 at the end, each in blocks of
    `block` elements in order, each block by `count` instructions whose share of it is open."""

    unit: float
    slices: int
    block: int
    count: int

    def words(self, name: str) -> str:
        each = f"{self.count} {name} for every {self.block} of K"
        return f"{each}, each off by {self.unit:.2g} of its sum |a b| + |c|"


def product(a: Array, b: Array, chain: Chain) -> Interval:
    """a b^T, [M, K] and [N, K]."""
    parts = [x.reshape(len(x), chain.slices, -1, chain.block) for x in (a, b)]
    sums = np.einsum("msjk,nsjk->sjmn", *parts)
    sizes = np.einsum("msjk,nsjk->sjmn", *(np.abs(x) for x in parts))
    before = np.abs(np.cumsum(sums, axis=1) - sums)
    error = (chain.unit + ADD) * chain.count * (before + sizes).sum(axis=(0, 1))
    error += chain.slices * ADD * np.abs(sums.sum(axis=1)).sum(axis=0)
    error *= 1 + 2.0**-6  # errors of errors
    exact = sums.sum(axis=(0, 1))
    return exact - error, exact + error


def matrix(chain: Chain, words: bool, values: Mapping[str, Array]) -> Interval:
    """y = a b^T in float32. `words`: a and b are 32-bit words of two bf16."""
    a, b = (_halves(values[n]) if words else values[n] for n in ("a", "b"))
    return product(a, b, chain)


def _halves(words: Array) -> Array:
    return numbers("bf16", words.astype(np.int64).astype(np.uint32).view(np.uint16))


def sums(addends: Callable[[Mapping[str, Array]], Array], values: Mapping[str, Array]) -> Interval:
    """Of the addends along the first axis, in float32 and any order: each goes through at most all additions."""
    parts = addends(values)
    size = (len(parts) - 1) * ADD * np.abs(parts).sum(axis=0) * (1 + 2.0**-10)
    return parts.sum(axis=0) - size, parts.sum(axis=0) + size


FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "ex2": np.exp2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "lg2": np.log2,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "div": np.divide,
}


def error(name: str, value: Array) -> Array:
    """What the ISA documents for an instruction that gives `value`."""
    opcode, *modifiers = name.split(".")
    pure = lookup(opcode, tuple(modifiers))
    if pure is None or pure.approximate is None:
        raise ValueError(f"{name} is not approximate")
    step = np.maximum(2.0 ** np.floor(np.log2(np.maximum(np.abs(value), 2.0**-149))), 2.0**-126) * 2.0**-23
    unit = {"ulp": step, "relative": np.abs(value), "absolute": np.ones_like(value)}[pure.error]
    wider = np.maximum(np.abs(value), 1) if opcode == "lg2" else 1  # relative beyond (0.5, 2)
    bound: Array = pure.approximate * unit * wider
    return bound


def approximate(rows: tuple[str, ...], pairs: tuple[str, ...], values: Mapping[str, Array]) -> Interval:
    """Rows of kernels/approximate.py."""
    x = values["x"]
    exact = [FUNCTIONS[name.split(".")[0]](x[i]) for i, name in enumerate(rows)]
    exact += [FUNCTIONS["div"](x[i], x[2]) for i, _ in enumerate(pairs)]
    size = np.stack([error(name, value) for name, value in zip((*rows, *pairs), exact, strict=True)])
    return single(np.stack(exact) - size, np.stack(exact) + size)


def situ(gate: Array, up: Array) -> Array:
    soft = SITU_BETA * np.tanh(gate / SITU_BETA) / (1 + np.exp(-gate))
    return soft * SITU_LINEAR_BETA * np.tanh(up / SITU_LINEAR_BETA)


def moe_shared(chains: tuple[Chain, Chain], values: Mapping[str, Array]) -> Interval:
    """`chains`: of gate_up and of down."""
    low, high = rounded(*product(values["m"], values["w_gate_up"], chains[0]))
    gates, ups = (tuple(np.split(part, 2, axis=1)[i] for part in (low, high)) for i in (0, 1))
    corners = np.stack([situ(g, u) for g in gates for u in ups])
    slack = np.abs(corners).max(axis=0) * SITU_ERROR
    low, high = rounded(corners.min(axis=0) - slack, corners.max(axis=0) + slack)
    h, half = (low + high) / 2, (high - low) / 2
    size = half @ np.abs(values["w_down"]).T
    ends = product(h, values["w_down"], chains[1])
    return rounded(ends[0] - size, ends[1] + size)


def projection(x: str, w: str, chain: Chain, values: Mapping[str, Array]) -> Interval:
    return rounded(*product(values[x], values[w], chain))


def attn_res(calls: tuple[tuple[int, int], ...], values: Mapping[str, Array]) -> Interval:
    """`out` of the last of these calls (nb, write_idx): prefix and blocks are exact, the mix of them is not."""
    prefix, blocks = values["prefix"], values["blocks"].copy()
    for nb, write in calls:
        prefix = numbers("bf16", bf16((prefix + values["delta"]).astype(np.float32)))
        sources = np.concatenate([blocks[:, :nb], prefix[:, None]], axis=1)
        if write >= 0:
            blocks[:, write] = prefix
    weight = values["w_norm"] * values["w_query"]
    factor = 1 / np.sqrt((sources**2).mean(axis=-1) + EPSILON)
    score = (sources * weight).sum(axis=-1) * factor
    doubt = (SUM_DEPTH * ADD * np.abs(sources * weight).sum(axis=-1) + 2.0**-21 * np.abs(score / factor)) * factor
    share = np.exp(score - score.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    mix, most = (np.einsum("ts,tsc->tc", share, s) for s in (sources, np.abs(sources)))
    scale = values["w_out"] / np.sqrt((mix**2).mean(axis=-1, keepdims=True) + EPSILON)
    # a weight is off by both its own score and the sum's; 2^-18: exponentials, products and the norm
    size = (2 * doubt.max(axis=-1, keepdims=True) + 2.0**-18) * most * np.abs(scale)
    return rounded(mix * scale - size, mix * scale + size)


def of_matrix(name: str, chain: Chain, words: bool = False) -> dict[str, Bound]:
    return {"y": Bound(chain.words(name), partial(matrix, chain, words))}


def of_sums(addends: Callable[[Mapping[str, Array]], Array], count: int) -> dict[str, Bound]:
    why = f"float atomics add {count} numbers in any order: {count - 1} additions of 2^-24 each"
    return {"y": Bound(why, partial(sums, addends))}
