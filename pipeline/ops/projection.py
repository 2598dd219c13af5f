"""What the plain projections share: out = bf16(x @ w.T), one GEMM, accumulated in float32 or better.

Base class `Projection` (input families, stock, references, cost) and the element rule, which an op's hard rules apply:

    |got - want| <= ulp(max(|want|, rms of the row)) + K 2^-24 sum_k |x_k w_k|

`want` is the float64 product. The first term is one bf16 step: half of it is the rounding of the result, the other
half is room for a rounding on the way (a vendor's split-K GEMM may keep partial sums in bf16). A step at the row's rms
alone would refuse a correctly rounded element of several rms. The second term bounds float32 accumulation in any
order. Where all products are zero the element must be zero. Relative L2 averages over a tensor and overlooks one
wrong element of 400,000; this does not. Not covered: biases, quantised weights, inputs that are not finite.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.quant import round_bf16
from kgen.ops.pack import PACK
from kgen.records import Problem

ROWS_AT_ONCE = 2048  # weight rows in float64 at a time: 117 MB at K = 7168
F32_UNIT = 2.0**-24  # half a float32 step at 1: the error of one float32 addition, relative
HUGE, DENORMAL = 2.0**100, 2.0**-128
NUDGE = 2.0**-4  # how far the second half of a cancelling weight is from the first


def tensor(values: Values, name: str) -> torch.Tensor:
    """A tensor argument by name."""
    value = values[name]
    assert isinstance(value, torch.Tensor)
    return value


def _pieces(w: torch.Tensor) -> list[torch.Tensor]:
    return [w[start : start + ROWS_AT_ONCE] for start in range(0, w.shape[0], ROWS_AT_ONCE)]


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x [rows, K] @ w [N, K].T in float64, a piece of w at a time: [rows, N]."""
    wide = x.double()
    return torch.cat([wide @ part.double().T for part in _pieces(w)], dim=1)


def product_sizes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """sum_k |x_k w_nk| in float64, as `product`: what the errors of a float32 sum are relative to."""
    wide = x.double().abs()
    return torch.cat([wide @ part.double().abs().T for part in _pieces(w)], dim=1)


def ulp(x: torch.Tensor) -> torch.Tensor:
    """The bf16 step at |x| (float64, finite), 2^-133 at least."""
    power = (x.view(torch.int64) & (0x7FF << 52)).view(torch.float64)
    return (power * 2.0**-7).clamp_min(2.0**-133)


def element_allowance(want: torch.Tensor, sizes: torch.Tensor, k: int) -> torch.Tensor:
    """The largest error of each element; `want` and `sizes` [rows, N] as `product` and `product_sizes` give them."""
    finite = want.nan_to_num(0.0, 0.0, 0.0)
    rms = finite.square().mean(dim=-1, keepdim=True).sqrt()
    allowed = ulp(torch.maximum(finite.abs(), rms)) + k * F32_UNIT * sizes
    return torch.where(sizes == 0, torch.zeros_like(allowed), allowed)


def element_breaches(name: str, got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> list[str]:
    """One line when an element of `got` [rows, N] is further than `allowed` from `want`; equal inf and NaN are fine."""
    g = got.double()
    error = (g - want).abs()
    fine = (error <= allowed) | (g == want) | (g.isnan() & want.isnan())
    if bool(fine.all()):
        return []
    row, column = (int(i) for i in (~fine).nonzero()[0])
    count = int((~fine).sum())
    return [
        f"{name}[{row}, {column}] is {float(g[row, column]):.6g}, must be within {float(allowed[row, column]):.3g}"
        f" of {float(want[row, column]):.6g}; {count} of {fine.numel()} elements are too far"
    ]


def activation_rows(shape: tuple[int, ...], family: str, gen: torch.Generator) -> torch.Tensor:
    """float32 rows of the families below that concern x alone."""
    if family == "huge":
        return normal(shape, gen) * HUGE
    x = rows(shape, family, gen)
    if family == "denormal_channels":
        x[..., torch.randperm(shape[-1], generator=gen, device=gen.device)[: shape[-1] // 2]] *= DENORMAL
    return x


FAMILIES = (
    Family("normal", "unit normal rows, weights N(0, 1/K)"),
    Family("outlier", "one channel in 256 times 30"),
    Family("zero_rows", "every other row zero: zero comes out"),
    Family("tiny", "rows times 2^-40"),
    Family("denormal_channels", "half of the channels bf16 denormals, which may be read as zero"),
    Family("large", "rows times 2^10"),
    Family("huge", "rows times 2^100: beyond f16, within bf16"),
    Family("signed_zero", "half of the values are -0"),
    Family("cancelling", "second half of K takes back the first but for 2^-4: coarse partial sums show"),
)


class Projection(Op):
    """One GEMM: `tensors` are the rows [tokens, K], the weight [N, K] and the result [tokens, N], in that order."""

    pack: ClassVar = PACK
    families: ClassVar[tuple[Family, ...]] = FAMILIES
    floor: ClassVar = 2e-3  # one rounding to bf16 is 1.66e-3
    chain: ClassVar = None
    sweep: ClassVar = {
        "tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded",
        "dims": "TP8 and TP16 widths",
        "L2": "cold",
    }

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        x, w, _ = self.tensors
        n, k = w.sizes(size)
        weight = normal((n, k), gen, k**-0.5)
        row = activation_rows((size["tokens"], k), family, gen)
        if family == "cancelling":
            half = k // 2
            row[:, half:] = -row[:, :half]
            weight[:, half:] = weight[:, :half] * (1 + normal((n, half), gen, NUDGE))
        return {x.name: row.to(torch.bfloat16), w.name: weight.to(torch.bfloat16)}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        x, w, out = (t.name for t in self.tensors)
        return lambda values: {out: F.linear(tensor(values, x), tensor(values, w))}

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        x, w, out = (t.name for t in self.tensors)
        exact = product(tensor(values, x), tensor(values, w))
        return {out: round_bf16(exact) if rounded else exact}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The element rule."""
        x, w, out = (t.name for t in self.tensors)
        row, weight = tensor(values, x), tensor(values, w)
        want = product(row, weight)
        allowed = element_allowance(want, product_sizes(row, weight), row.shape[1])
        return element_breaches(out, got[out], want, allowed)

    def cost(self, problem: Problem) -> Cost:
        size = self.sizes(problem)
        n, k = self.tensors[1].sizes(size)
        return Cost(bytes=2 * n * k + 2 * size["tokens"] * (k + n), flops=2 * size["tokens"] * n * k)
