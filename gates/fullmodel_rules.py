"""The decision rules of the full-model gate: one table of limits, each with its reason.

`judge(...)` compares one side that is under test with stock, both against float64, and returns breaches; the first one
decides the code. The same rules judge candidates and mutants.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kgen.gates import fullmodel_stats as stats
from kgen.records import to_json

# Distance of a candidate over stock's own, from float64. All rows of a mode pooled: thousands of rows, so that a
# legitimate change of summation order stays within a few per cent.
POOLED = 1.25
POOLED_KL = POOLED**2  # KL grows with the square of the distance
# One batch has a tenth of the rows, and a router spreads their distances over a decade: here the interval's lower end
# is compared, so that only what few rows already prove refuses.
BATCH = 1.6
# Columns: one tile scaled by 1.05 moves its own block's ratio to 4, legitimate changes stay below 1.25. In one batch
# the block is compared with the batch's middle block, which cancels what all columns of a row share.
BLOCK = 1.5
BLOCK_BATCH = 1.8
# A row position that is this much farther than stock usually is, at every step of its batch: a row with another
# token's result is 12 to 70 times farther, legitimate changes stay below 1.
POSITION = 4.0
FAR = 10.0  # medians of the stock distance: what only rare rows reach
ALPHA = 1e-3  # of each exact test: one good kernel in a thousand may be refused by one


@dataclass(frozen=True)
class Breach:
    code: str  # the gate's code
    message: str


@dataclass(frozen=True)
class Side:
    """What one engine left: rows against float64 by (batch, mode), free generations against float64's by batch."""

    rows: Mapping[tuple[str, str], stats.Rows]
    diverged: Mapping[str, Any] = field(default_factory=dict)  # batch -> int64 [count], first divergence step


def judge(tested: Side, stock: Side) -> tuple[list[Breach], dict[str, Any]]:
    """Breaches (none: passed) and the numbers. `stock` holds at least the batches of `tested`."""
    breaches: list[Breach] = []
    numbers: dict[str, Any] = {"batches": {}, "modes": {}}
    for (batch, mode), rows in tested.rows.items():
        found, values = _one_batch(f"{batch} {mode}", rows, stock.rows[batch, mode])
        breaches += found
        numbers["batches"][f"{batch} {mode}"] = values
    for mode in dict.fromkeys(mode for _, mode in tested.rows):
        keys = [key for key in tested.rows if key[1] == mode]
        found, values = _pooled(mode, [tested.rows[k] for k in keys], [stock.rows[k] for k in keys])
        breaches += found
        numbers["modes"][mode] = values
    if tested.diverged:
        found, numbers["generation"] = _generation(tested, stock)
        breaches += found
    return sorted(breaches, key=lambda b: b.code != "fullmodel.logits"), numbers


def _one_batch(where: str, tested: stats.Rows, stock: stats.Rows) -> tuple[list[Breach], dict[str, Any]]:
    if not tested.finite:
        return [Breach("fullmodel.logits", f"{where}: logits or hidden rows are not finite")], {"finite": False}
    hidden = stats.median_ratio(tested.hidden, stock.hidden)
    block, block_ratio, local = stats.worst_block(tested.blocks, stock.blocks)
    position, position_ratio = stats.worst_position(tested, stock)
    values = {
        "rows": tested.hidden.shape[0],
        "stock_hidden": float(stock.hidden.median()),
        "hidden": to_json_ratio(hidden),
        "block": [block, block_ratio, local],
        "position": [position, position_ratio],
        "top1": [float(tested.right.double().mean()), float(stock.right.double().mean())],
    }
    columns = f"columns {block * stats.BLOCK} to {(block + 1) * stats.BLOCK - 1}"
    checks = (
        (hidden.low, BATCH, "the hidden rows are surely"),
        (local, BLOCK_BATCH, f"beside the other columns, {columns} of the hidden rows are"),
        (position_ratio, POSITION, f"row {position} of the batch is, at every step,"),
    )
    return [_farther(where, what, ratio, limit) for ratio, limit, what in checks if not ratio <= limit], values


def _pooled(mode: str, tested: list[stats.Rows], stock: list[stats.Rows]) -> tuple[list[Breach], dict[str, Any]]:
    t, s = stats.pooled(tested), stats.pooled(stock)
    if not t.finite:
        return [], {"finite": False}
    ratios = {name: stats.median_ratio(getattr(t, name), getattr(s, name)) for name in ("logits", "hidden", "kl")}
    block, block_ratio, local = stats.worst_block(t.blocks, s.blocks)
    rare = stats.far(t.hidden, s.hidden, FAR)
    losses, wins = stats.discordant(t.right, s.right)
    p_rare, p_agree = stats.mcnemar(*rare), stats.mcnemar(losses, wins)
    items = t.right.shape[0]
    limits = {"logits": POOLED, "hidden": POOLED, "kl": POOLED_KL}
    breaches = [_farther(mode, f"{n} are", r.point, limits[n]) for n, r in ratios.items() if not r.point <= limits[n]]
    if not block_ratio <= BLOCK:
        what = f"columns {block * stats.BLOCK} to {(block + 1) * stats.BLOCK - 1} of the hidden row are"
        breaches.append(_farther(mode, what, block_ratio, BLOCK))
    if p_rare < ALPHA:
        text = f"{mode}: {rare[0]} rows are far from float64 with the candidate only, {rare[1]} with stock only"
        breaches.append(Breach("fullmodel.logits", f"{text} (p = {p_rare:.1e})"))
    if p_agree < ALPHA:
        text = f"{mode}: of {items} tokens the candidate loses {losses} that stock gets right and wins {wins}"
        breaches.append(Breach("fullmodel.agreement", f"{text} (exact McNemar p = {p_agree:.1e})"))
    return breaches, {
        **{name: to_json_ratio(r) for name, r in ratios.items()},
        "stock": {n: float(getattr(s, n).median()) for n in ratios},
        "block": [block, block_ratio, local],
        "far": {"candidate_only": rare[0], "stock_only": rare[1], "p": p_rare},
        "agreement": {
            "items": items,
            "candidate": float(t.right.double().mean()),
            "stock": float(s.right.double().mean()),
            "losses": losses,
            "wins": wins,
            "p": p_agree,
            "delta": to_json_ratio(stats.agreement_delta(losses, wins, items)),
        },
    }


def _generation(tested: Side, stock: Side) -> tuple[list[Breach], dict[str, Any]]:
    """Free generation: at which step each sequence leaves float64's, paired with stock's."""
    earlier = later = 0
    for batch, steps in tested.diverged.items():
        earlier += int((steps < stock.diverged[batch]).sum())
        later += int((steps > stock.diverged[batch]).sum())
    p = stats.mcnemar(earlier, later)
    values = {"earlier": earlier, "later": later, "p": p}
    if p >= ALPHA:
        return [], values
    text = f"free generation leaves float64 earlier than stock in {earlier} sequences, later in {later} (p = {p:.1e})"
    return [Breach("fullmodel.agreement", text)], values


def _farther(where: str, what: str, ratio: float, limit: float) -> Breach:
    text = f"{where}: {what} {ratio:.2f}x as far from float64 as stock's, allowed {limit:.2f}x"
    return Breach("fullmodel.logits", text)


def to_json_ratio(ratio: stats.Ratio) -> list[Any]:
    """[point, low, high]"""
    return [to_json(value) for value in (ratio.point, ratio.low, ratio.high)]
