"""Stand-ins for a candidate on machines without a GPU: the stock op, computed otherwise or with a planted fault.

They show that the gate lets a legitimate change of rounding pass and refuses small numeric faults. None is reachable
from a candidate's source. `tile_scale` and `drop_last_k` are the defects that the builder plants in real artefacts.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping

import torch

from kgen.contract import Role, Values
from kgen.contract.op import Op
from kgen.records import Problem

Outputs = dict[str, torch.Tensor]
StandIn = Callable[[Values], Outputs]

TILE = 128  # columns
TILE_FACTOR = 1.05
SLICES = 28  # K slices of 256 at a hidden size of 7168; a narrower K has slices of its own
WRONG_ROW = 2


def _stock(op: Op, problem: Problem) -> StandIn:
    return op.stock(problem)


def _reordered(op: Op, problem: Problem) -> StandIn:
    """Legitimate: the op's own roundings, summed in float64 instead of float32."""

    def call(values: Values) -> Outputs:
        return _narrowed(op, problem, op.reference(problem, values, rounded=True))

    return call


def _unrounded(op: Op, problem: Problem) -> StandIn:
    """Legitimate: only the results are rounded, intermediate values stay wide."""

    def call(values: Values) -> Outputs:
        return _narrowed(op, problem, op.reference(problem, values, rounded=False))

    return call


def _tile_scale(op: Op, problem: Problem) -> StandIn:
    return _altered(op, problem, lambda y: torch.cat([y[:, :TILE] * TILE_FACTOR, y[:, TILE:]], dim=1))


def _wrong_row(op: Op, problem: Problem) -> StandIn:
    """One row of the batch holds its neighbour's result."""

    def alter(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[WRONG_ROW % y.shape[0]] = y[(WRONG_ROW + 1) % y.shape[0]] if y.shape[0] > 1 else 0
        return y

    return _altered(op, problem, alter)


def _nan(op: Op, problem: Problem) -> StandIn:
    return _altered(
        op, problem, lambda y: y.index_fill(1, torch.tensor([y.shape[1] - 1], device=y.device), float("nan"))
    )


def _drop_last_k(op: Op, problem: Problem) -> StandIn:
    """The first weight's last K slice never enters the sum."""
    weight = next(t.name for t in op.present(problem) if t.role is Role.WEIGHT)

    def call(values: Values) -> Outputs:
        w = values[weight]
        assert isinstance(w, torch.Tensor)
        cut = w.clone()
        cut[..., -max(1, w.shape[-1] // SLICES) :] = 0
        return op.stock(problem)({**values, weight: cut})

    return call


def _dies(op: Op, problem: Problem) -> StandIn:
    def call(values: Values) -> Outputs:
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    return call


def _raises(op: Op, problem: Problem) -> StandIn:
    def call(values: Values) -> Outputs:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    return call


def _hangs(op: Op, problem: Problem) -> StandIn:
    def call(values: Values) -> Outputs:
        time.sleep(3600)
        return {}

    return call


def _altered(op: Op, problem: Problem, alter: Callable[[torch.Tensor], torch.Tensor]) -> StandIn:
    """The stock op with its first output changed."""
    stock = op.stock(problem)
    name = next(t.name for t in op.present(problem) if t.role is Role.OUT)

    def call(values: Values) -> Outputs:
        got = stock(values)
        return {**got, name: alter(got[name])}

    return call


def _narrowed(op: Op, problem: Problem, got: Outputs) -> Outputs:
    return {t.name: got[t.name].to(torch.bfloat16) for t in op.outputs(problem)}


STANDINS: Mapping[str, Callable[[Op, Problem], StandIn]] = {
    "": _stock,
    "reordered": _reordered,
    "unrounded": _unrounded,
    "tile_scale": _tile_scale,
    "drop_last_k": _drop_last_k,
    "wrong_row": _wrong_row,
    "nan": _nan,
    "dies": _dies,
    "raises": _raises,
    "hangs": _hangs,
}
