"""A layer whose router sends its rows to recorded experts: the router's weights are fitted, no kernel is added.

    words(trace) -> str                     how a job calls its routing
    unfit(trace, settings, tokens, asked)   why these points cannot follow the trace, "" where they can
    follow(built, drawn, ids, turns)        raises Refused (one line) where the choice is not the recorded one

A router of a layer reads what the layer before it left, which no trace has. So the weights are changed by the smallest
amount that gives the recorded experts logits above all others on the rows that this set has: every side then chooses
them by itself, in the kernels and in the time that any choice takes. Not covered: weights of the chosen (they follow
from the fitted logits), and requests whose next token goes elsewhere: a row keeps its experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kgen.contract import Op, Values
from kgen.gates import routing
from kgen.gates.layer.check import Built, Refused, chosen
from kgen.gates.layer.columns import ROUTER
from kgen.gates.layer.draw import Drawn
from kgen.gates.layer.points import EVEN, model_of
from kgen.gates.routing import Recorded, facts, mismatch
from kgen.model.bind import Binder, OpCall
from kgen.model.decoder.config import sizes
from kgen.ops import REGISTRY
from kgen.records import Problem

LIFT = 2.0  # of the recorded experts' logits above, at least; a score's sigmoid is far from flat there


def words(trace: Recorded) -> str:
    return routing.said([facts(trace)]).removeprefix("routing ")


def unfit(trace: Recorded, settings: Sequence[str], tokens: Sequence[int], asked: str = EVEN) -> str:
    """`asked`: the drawn routing that was asked for. Raises ValueError for an unknown setting."""
    if asked != EVEN:
        return "--routing and --routing-trace both say which experts are chosen: give one of them"
    for setting in settings:
        of = sizes(REGISTRY.get("moe_experts"), model_of(setting).dims)
        if why := mismatch(trace, of["experts"], of[routing.CHOICES], max(tokens, default=0)):
            return f"{setting}: {why}"
    return ""


@dataclass
class Noting:
    """A binder round another that keeps the rows the router was given."""

    inner: Binder
    rows: list[torch.Tensor] = field(default_factory=list)

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = self.inner.bind(op, problem, seat)

        def noted(values: Values) -> dict[str, torch.Tensor]:
            given = values["m"]
            assert isinstance(given, torch.Tensor)
            self.rows.append(given.clone())
            return call(values)

        return noted if op.name == ROUTER else call


def follow(built: Built, drawn: Drawn, ids: Sequence[Sequence[int]], turns: int) -> None:
    """`built`: the set's unfused layer, its binder a Noting; `ids`: experts of each row; `turns`: calls of one set in a
    graph, whose states go on from call to call."""
    assert isinstance(built.tap.inner, Noting)
    wanted = torch.tensor(ids, device=drawn.prefix.device)
    _turn(built, drawn, fresh=True)
    weight = drawn.weights["moe.w_router"]
    weight.copy_(fitted(weight, built.tap.inner.rows[-1], wanted))
    for turn in range(turns):
        _turn(built, drawn, fresh=turn == 0)
        if not torch.equal(chosen(built).sort(1).values.long(), wanted.sort(1).values):
            raise Refused("the router does not keep to the recorded experts: try another --seed")


def fitted(weight: torch.Tensor, rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Router weights [experts, hidden] whose logits on `rows` are LIFT or more for the wanted experts [rows, k] and 0
    or less for the others: the smallest change that does so."""
    wide, x = weight.double(), rows.double()
    logits = x @ wide.T
    best = torch.zeros_like(logits, dtype=torch.bool).scatter(1, wanted, True)
    target = torch.where(best, LIFT + logits.abs(), -logits.abs())
    inverse: torch.Tensor = torch.linalg.pinv(x)
    return (wide + (inverse @ (target - logits)).T).to(weight.dtype)


def _turn(built: Built, drawn: Drawn, fresh: bool) -> None:
    if fresh:
        drawn.restore()
    built.tap.start()
    built.tap.listening = True
    built.layer(drawn.residual(), drawn.state)
    built.tap.listening = False
