"""Experts by token instead of by score, the same on every side of a comparison with float64.

A router is discontinuous: where two experts score alike, any rounding chooses the other one. Of 896 experts with 16
chosen some layer does so so often that the usual row is then ten times as far from float64 as any kernel's
rounding takes it, in stock as in a candidate. Distances of such rows say nothing about a kernel. So drawn models take
their experts, while rows are compared with float64, from a table by token id: as skewed as the router's own choice,
with the weights that the side's own logits give those experts. The router in the seat runs and is counted all the same.

Not for a router under judgement, nor for the trained model: there each side chooses for itself.
"""

from dataclasses import dataclass

import torch

from kgen.contract import Values
from kgen.contract.families import generator
from kgen.contract.op import Op
from kgen.model.bind import Binder, OpCall
from kgen.model.decoder.draw import ROUTER_SCALE
from kgen.model.decoder.session import Session
from kgen.model.decoder.weights import Weights
from kgen.ops.router_rules import weights_of
from kgen.records import Problem

ROUTER = "moe_router"


@dataclass
class GivenExperts:
    """A binder round another one; call `follow` with the session whose tokens choose."""

    inner: Binder
    weights: Weights
    seed: int
    device: str
    _ids: torch.Tensor | None = None  # i64 [rows]: a session's buffer, which a captured graph reads too

    def follow(self, session: Session) -> None:
        self._ids = session.tokens

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = self.inner.bind(op, problem, seat)
        if op.name != ROUTER:
            return call
        table = self._table(seat.removesuffix(".router"), op.sizes(problem)["top_k"])

        def given(values: Values) -> dict[str, torch.Tensor]:
            chosen = call(values)
            assert self._ids is not None, "no session is followed"
            ids = table[self._ids]
            return {**chosen, "ids": ids, "w": _weights(values, ids).to(chosen["w"].dtype)}

        return given

    def _table(self, layer: str, top_k: int) -> torch.Tensor:
        """i32 [vocabulary, top_k]: the experts of each token, drawn as a router with this layer's bias would choose."""
        bias = self.weights[f"{layer}.moe.bias"].float()
        gen = generator(self.seed + int(layer.split(".")[1]), self.device)
        shape = (self.weights["embed"].shape[0], bias.shape[0])
        scores = torch.sigmoid(ROUTER_SCALE * torch.randn(shape, generator=gen, device=self.device))
        return torch.topk(scores + bias, top_k, dim=1).indices.to(torch.int32)


def _weights(values: Values, ids: torch.Tensor) -> torch.Tensor:
    """[rows, top_k]: renormalised scores of these experts, in float32, or float64 where the rows are."""
    m, w_router = values["m"], values["w_router"]
    assert isinstance(m, torch.Tensor) and isinstance(w_router, torch.Tensor)
    wide = torch.float64 if m.dtype is torch.float64 else torch.float32
    scores = torch.sigmoid(m.to(wide) @ w_router.to(wide).T)
    return weights_of(scores, ids.long(), float(values["scale"]))
