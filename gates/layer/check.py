"""Is a side right enough to be timed? Its outputs against float64, with the unfused layer's own distance as yardstick.

The outputs are what leaves the layer: the delta, the running sum, recurrent states, the cache's new row, and on a rank
with peers what its collectives would take; and what attention gives, which a long context makes small in the running
sum. Limits are those of the model gate: medians over rows, columns beside the others, and states; and each single row,
and each row's tiles, beside the unfused layer's of the same row. All sides take the experts that the unfused router
chose, with the weights of their own logits, because a router is discontinuous; each router's own choice is held to the
hard rules of its op. Not covered: more than one step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kgen.contract.op import Registry
from kgen.gates.layer.chain import Lanes, OneLayer
from kgen.gates.layer.columns import ROUTER, Tap
from kgen.gates.layer.draw import Drawn
from kgen.gates.modeleval import distance
from kgen.gates.modeleval import limits as at_most
from kgen.model.bind import ReferenceBinder

STATES = ("s", "conv", "cache row")
DELTA, TILE = "delta", "a tile of the delta"
HEADS = {"core": "y", "value": "y"}  # seat's last word -> output that attention gives
COLLECTED = {"latent": "lat", "experts": "part", "shared": "y"}  # the same, where peers take it
REPLAYED = 0.01  # relative L2 of a replayed row from the same row of an eager step: summation order at most
SWAPPED = 16  # of so many rows one may be farther: sums that are no two times alike may turn a router's near tie
Outputs = dict[str, torch.Tensor]


class Refused(Exception):
    """A side that must not be timed, and why: one line."""


@dataclass
class Built:
    """One side of one set: its layer, and the tap round what sits in its seats."""

    layer: OneLayer
    tap: Tap
    pulls: bool = False  # weights are pulled into L2 on a stream of their own


def step(built: Built, drawn: Drawn, ids: torch.Tensor | None = None) -> Outputs:
    """One eager step on fresh states; what leaves the layer, by name."""
    drawn.restore()
    built.tap.start()
    built.tap.ids, built.tap.listening = ids, True
    residual = drawn.residual()
    delta = built.layer(residual, drawn.state)
    built.tap.ids, built.tap.listening = None, False
    found = {DELTA: delta.clone(), "prefix": residual.prefix.clone(), **_states(drawn)}
    taken = {**HEADS, **(COLLECTED if drawn.gathered.latent is not None else {})}
    for heard in built.tap.heard:
        if (name := heard.seat.split(".")[2]) in taken:
            found[name] = heard.outputs[taken[name]]
    return found


def after(built: Built, drawn: Drawn, turns: int) -> torch.Tensor:
    """The delta of the last of `turns` eager steps on one state, each with its own router's choice."""
    drawn.restore()
    for _ in range(turns):
        built.tap.start()
        delta = built.layer(drawn.residual(), drawn.state)
    return delta.clone()


def _states(drawn: Drawn) -> Outputs:
    """What a step has written into states: [rows, ...]."""
    state, layer = drawn.state, drawn.layer
    if layer in state.s:
        slots = state.slots().long()
        return {"s": state.s[layer][slots], "conv": state.conv[layer][slots]}
    return {"cache row": state.cache[layer, 0].flatten(0, 1)[state.cache_slots(0)]}


def chosen(built: Built) -> torch.Tensor:
    """The router's own choice in the step before: i32 [rows, top_k]."""
    return next(h.outputs["ids"] for h in built.tap.heard if h.op == ROUTER)


@torch.no_grad()
def exact(drawn: Drawn, registry: Registry, arch: str, ids: torch.Tensor) -> Outputs:
    """The same step in float64 without roundings."""
    drawn.restore()
    wide, tap = drawn.exact(), Tap(ReferenceBinder())
    rows = drawn.prefix.shape[0]
    layer = OneLayer(wide.config, wide.layer, wide.weights, rows, arch, tap, registry, Lanes(), wide.gathered)
    return step(Built(layer, tap), wide, ids)


@dataclass(frozen=True)
class Distances:
    """Of one side over all sets: relative L2 of every row from float64 by output, and of the delta's columns."""

    rows: Mapping[str, torch.Tensor]  # float64 [sets x rows]
    blocks: torch.Tensor  # [sets x rows, blocks of columns]
    finite: bool


def distances(got: Sequence[Outputs], want: Sequence[Outputs]) -> Distances:
    found: dict[str, list[torch.Tensor]] = {name: [] for name in want[0]}
    blocks, finite = [], True
    for mine, theirs in zip(got, want, strict=True):
        for name, right in theirs.items():
            value = mine[name].double().flatten(1)
            finite = finite and bool(torch.isfinite(value).all())
            found[name].append(distance.relative(value, right.double().flatten(1)))
        blocks.append(distance.relative(*(distance.in_blocks(side[DELTA].double()) for side in (mine, theirs))))
    return Distances({n: torch.cat(parts).cpu() for n, parts in found.items()}, torch.cat(blocks).cpu(), finite)


def judged(name: str, side: Distances, unfused: Distances) -> dict[str, float]:
    """Ratio of the medians by output. Raises Refused, also for a single row or tile that is too far."""
    if not side.finite:
        raise Refused(f"{name}: the layer's outputs hold values that are not finite")
    ratios = {n: _ratio(rows.median(), unfused.rows[n].median()) for n, rows in side.rows.items()}
    for output, ratio in ratios.items():
        most = at_most.DRIFT if output in STATES else at_most.SINGLE
        if not ratio <= most:
            text = f"{output} is {ratio:.2f}x as far from float64 as the unfused layer's, allowed {most:.2f}x"
            raise Refused(f"{name}: {text}")
    columns = side.blocks.median(0).values / unfused.blocks.median(0).values
    columns = columns / columns.median()
    worst = int(columns.argmax())
    if not float(columns[worst]) <= at_most.BLOCK_SINGLE:
        where = f"columns {worst * distance.BLOCK} to {(worst + 1) * distance.BLOCK - 1} of the delta are"
        text = f"beside the others, {where} {float(columns[worst]):.2f}x as far from float64 as the unfused layer's"
        raise Refused(f"{name}: {text}, allowed {at_most.BLOCK_SINGLE:.2f}x")
    for output, ratio in worst_rows(side, unfused).items():
        most = at_most.SEQUENCE if output == TILE else at_most.ALONE
        if not ratio <= most:
            text = (
                f"{output} of one row is {ratio:.2f}x as far from float64 as the unfused layer's, allowed {most:.2f}x"
            )
            raise Refused(f"{name}: {text}")
    return ratios


def worst_rows(side: Distances, unfused: Distances) -> dict[str, float]:
    """By output, and for TILE: the largest ratio of one row's distance to the unfused layer's of the same row, which
    counts as its median at least: a row that came out well by chance is no yardstick."""
    return {
        **{n: _worst(rows, unfused.rows[n]) for n, rows in side.rows.items()},
        TILE: _worst(side.blocks, unfused.blocks),
    }


def _worst(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    yardstick = theirs.clamp_min(float(theirs.median()))
    return float(torch.where(mine == 0, 0.0, mine / yardstick).max())


def _ratio(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """1 where both are 0."""
    return 1.0 if mine == theirs else float(mine / theirs)


def same(name: str, replayed: torch.Tensor, eager: torch.Tensor) -> None:
    """What a graph left is what the eager step gave, row by row. Raises Refused."""
    far = distance.relative(replayed.double(), eager.double())
    wrong = int((~(far <= REPLAYED)).sum())  # what is not finite is wrong
    if wrong > far.numel() // SWAPPED:
        rows = f"{wrong} of {far.numel()} rows are other than the same step's outside, by up to {float(far.max()):.2g}"
        raise Refused(f"{name}: after a replay of its graph {rows} (relative L2)")


def unchanged(name: str, got: Outputs, plain: Outputs, again: Outputs) -> None:
    """Pulling weights changes no bit of what comes out, where the chain without it repeats itself to the bit (`plain`
    and `again`). Raises Refused."""
    for output, value in got.items():
        if torch.equal(plain[output], again[output]) and not torch.equal(value, plain[output]):
            raise Refused(f"{name}: {output} is not what it is without prefetch, to the bit")
