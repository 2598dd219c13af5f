"""What each latent attention layer gives, kept beside the rows: a fault of one head's query is seen there.

A query decides how a context is weighted, no more: a tile of one head's query that is 5 % too large moves that head's
output by some per cent, which is several times stock's own distance from float64 there, and a tenth of it once eleven
other heads, the residual and a few more layers are added. So the model that judges a query keeps these outputs, 128
columns a head, and the rules compare them like columns of hidden rows. Contexts are filled: in one of a few rows there
is little to weigh, and the weights of a drawn model's few keys are nearly even.

Not covered: other ops, whose faults the hidden rows show.
"""

from dataclasses import dataclass, field

import torch

from kgen.contract import Values
from kgen.contract.op import Op
from kgen.model.bind import Binder, OpCall
from kgen.records import Problem

QUERY = "mla_q"  # whose builds need it
CONTEXT = 256  # rows; with more of them the distances are the same
GIVES = ("mla_out_gate", "mla_dcp_merge")  # the ops that end a latent attention layer, with output y


@dataclass
class KeptHeads:
    """A binder round another one. A captured graph copies into the same memory as the steps before it."""

    inner: Binder
    _kept: dict[str, torch.Tensor] = field(default_factory=dict)  # by seat, in the order of the layers

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = self.inner.bind(op, problem, seat)
        if op.name not in GIVES:
            return call

        def kept(values: Values) -> dict[str, torch.Tensor]:
            got = call(values)
            if seat not in self._kept:
                self._kept[seat] = torch.empty_like(got["y"])
            self._kept[seat].copy_(got["y"])
            return got

        return kept

    def rows(self, count: int) -> torch.Tensor:
        """Of the last step: its first `count` rows, the heads of all layers side by side."""
        return torch.cat([y[:count] for y in self._kept.values()], dim=1)
