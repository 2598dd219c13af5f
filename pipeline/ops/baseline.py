"""A baseline of the perf sweep beside an op's stock: what a library can do that the stock op, as it is, does not."""

from collections.abc import Callable
from dataclasses import dataclass

from kgen.contract.op import StockFn, Values
from kgen.ops.experts_stock import Compile
from kgen.records import Problem


@dataclass(frozen=True)
class Baseline:
    """`make(problem, compile)` gives values -> outputs, capturable in a CUDA graph and without a host sync.

    `prepare` makes what it reads beside a call's values from its weights, off the clock: a copy that a server would
    keep. `fits` says at which points, and true counts of tokens, it may be the best and is worth being timed.
    """

    make: Callable[[Problem, Compile | None], StockFn]
    fits: Callable[[Problem, int], bool]
    prepare: Callable[[Values], Values] | None = None
