"""Stand-ins for a candidate of any op on machines without a GPU: the stock op, computed otherwise or with a fault.

They show that the evaluation lets a legitimate change of rounding pass and refuses small numeric faults. None is
reachable from a candidate's source. `tile_scale` and `drop_last_k` are the defects that the builder plants in real
artefacts. Faults change the first floating-point output with columns, or the rows that a call wrote to a state.
"""

import os
import signal
from collections.abc import Callable, Mapping

import torch

from kgen.contract import DTYPES, Role, Values
from kgen.contract.op import Op
from kgen.gates.builder import defects
from kgen.records import Problem

Outputs = dict[str, torch.Tensor]
StandIn = Callable[[Values], Outputs]
Alter = Callable[[torch.Tensor], torch.Tensor]

TILE, TILE_FACTOR = 128, 1.05  # columns
SLICES = 28  # K slices of 256 at a hidden size of 7168; a narrower K has slices of its own
WIDE = 8  # rows above which `wide_only` is wrong
STATE_GROWTH = 1.004  # a step
SIGHT = 128
TILT, TILTED = 0.02, 2  # share of the probability that one token gains


def _stock(op: Op, problem: Problem) -> StandIn:
    return op.stock(problem)


def _reordered(op: Op, problem: Problem) -> StandIn:
    """Legitimate: the op's own roundings, summed in float64 instead of float32."""
    return lambda values: _narrowed(op, problem, op.reference(problem, values, rounded=True))


def _tile_scale(op: Op, problem: Problem) -> StandIn:
    """One tile of columns too large; half of a narrower row, since a norm may follow that forgives a whole one."""

    def alter(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[..., : min(TILE, y.shape[-1] // 2)] *= TILE_FACTOR
        return y

    return _altered(op, problem, alter)


def _head_tile(op: Op, problem: Problem) -> StandIn:
    """The tile of an output with heads as the builder plants it: across a norm's columns, in the first head alone."""
    begin, end = defects.tile(op.outputs(problem)[0].sizes(op.sizes(problem))[-1])

    def alter(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[:, 0, begin:end] *= defects.FACTOR
        return y

    return _altered(op, problem, alter)


def _wide_only(op: Op, problem: Problem) -> StandIn:
    return (_tile_scale if problem.tokens > WIDE else _stock)(op, problem)


def _wrong_row(op: Op, problem: Problem) -> StandIn:
    """One row of the batch holds its neighbour's result."""

    def alter(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        row = 2 % y.shape[0]
        y[row] = y[(row + 1) % y.shape[0]] if y.shape[0] > 1 else 0
        return y

    return _altered(op, problem, alter)


def _nan(op: Op, problem: Problem) -> StandIn:
    def alter(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[..., -1] = torch.nan
        return y

    return _altered(op, problem, alter)


def _drop_last_k(op: Op, problem: Problem) -> StandIn:
    """The first matrix's last K slice never enters the sum; without a matrix, as much of a weight or an input."""
    present = [t for t in op.present(problem) if t.dtype == "bf16"]
    weights = [t for t in present if t.role is Role.WEIGHT]
    matrices = [t for t in weights if len(t.shape) > 1]
    name = (matrices or weights or [t for t in present if t.role is Role.IN])[0].name
    stock = op.stock(problem)

    def call(values: Values) -> Outputs:
        w = values[name]
        assert isinstance(w, torch.Tensor)
        cut = w.clone()
        cut[..., -max(1, w.shape[-1] // SLICES) :] = 0
        return stock({**values, name: cut})

    return call


def _growing_state(op: Op, problem: Problem) -> StandIn:
    """float32 states are stored a little too large, at every call."""
    grown = [t.name for t in op.outputs(problem) if t.role is Role.STATE and t.dtype == "f32"]
    stock = op.stock(problem)

    def call(values: Values) -> Outputs:
        got = stock(values)
        return {**got, **{name: got[name] * STATE_GROWTH for name in grown}}

    return call


def _lost_rollback(op: Op, problem: Problem) -> StandIn:
    """A verify step goes on as if every token of the last one had been kept."""
    stock = op.stock(problem)

    def call(values: Values) -> Outputs:
        accepted = values.get("accepted")
        if not isinstance(accepted, torch.Tensor):
            return stock(values)
        return stock({**values, "accepted": torch.full_like(accepted, int(problem.axes["q"]))})

    return call


def _short_sight(op: Op, problem: Problem) -> StandIn:
    """Attention looks at the first SIGHT rows of a context only."""
    stock = op.stock(problem)

    def call(values: Values) -> Outputs:
        lengths = values["lengths"]
        assert isinstance(lengths, torch.Tensor)
        return stock({**values, "lengths": lengths.clamp_max(SIGHT)})

    return call


def _tilted(op: Op, problem: Problem) -> StandIn:
    """Logits of a distribution that is (1 - TILT) the right one and TILT a single token."""
    stock = op.stock(problem)

    def call(values: Values) -> Outputs:
        got = stock(values)
        shares = torch.softmax(got["logits"].double(), -1) * (1 - TILT)
        shares[:, TILTED] += TILT
        return {**got, "logits": shares.log().to(got["logits"].dtype)}

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


def _altered(op: Op, problem: Problem, alter: Alter) -> StandIn:
    """The stock op with one output changed; of an op that only writes a state, the entries that the call wrote."""
    stock = op.stock(problem)
    outs = [t for t in op.outputs(problem) if DTYPES[t.dtype].torch in ("bfloat16", "float32") and len(t.shape) > 1]
    spec = next((t for t in outs if t.role is Role.OUT), outs[0])

    def call(values: Values) -> Outputs:
        before = values.get(spec.name)
        kept = before.clone() if spec.role is Role.STATE and isinstance(before, torch.Tensor) else None
        got = stock(values)
        after = got[spec.name]
        changed = alter(after)
        return {**got, spec.name: changed if kept is None else torch.where(after == kept, after, changed)}

    return call


def _narrowed(op: Op, problem: Problem, got: Outputs) -> Outputs:
    return {t.name: got[t.name].to(getattr(torch, DTYPES[t.dtype].torch)) for t in op.outputs(problem)}


STANDINS: Mapping[str, Callable[[Op, Problem], StandIn]] = {
    "": _stock,
    "reordered": _reordered,
    "tile_scale": _tile_scale,
    "head_tile": _head_tile,
    "wide_only": _wide_only,
    "drop_last_k": _drop_last_k,
    "wrong_row": _wrong_row,
    "nan": _nan,
    "growing_state": _growing_state,
    "lost_rollback": _lost_rollback,
    "short_sight": _short_sight,
    "tilted": _tilted,
    "dies": _dies,
    "raises": _raises,
}
