"""Rules on rows against float64: logits, hidden rows, top-1 and KL of forced exercises, and drift of recurrent states.

The same rules judge candidates and mutants. Stock's own distance from float64 is the yardstick.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kgen.gates.modeleval import distance
from kgen.gates.modeleval import limits as at_most
from kgen.gates.modeleval.breach import AGREEMENT, DRIFT, LOGITS, LONG_CONTEXT, Breach, Finding, brief, ordered, shown
from kgen.gates.modeleval.distance import BLOCK, Rows
from kgen.gates.modeleval.divergence import drift, state_distances
from kgen.gates.modeleval.exercise import EAGER, FILLED, FORCED, Exercise
from kgen.gates.modeleval.paired import difference, mcnemar, pair
from kgen.gates.modeleval.sides import Left, Record

Key = tuple[str, str]  # exercise, mode
Check = tuple[float, float, str]  # a ratio, the most that is allowed, what is so far
POOLED: tuple[tuple[distance.Measure, float], ...] = (
    ("logits", at_most.POOLED),
    ("hidden", at_most.POOLED),
    ("kl", at_most.POOLED_KL),
    ("logit_error", at_most.POOLED),
)


@dataclass(frozen=True)
class Measured:
    """One exercise in one mode: rows, the same rows with blocks of logits, and distances of states by checkpoint.

    `heads`: the same rows with the attention's output in the hidden row's place, where the exercise keeps it.
    """

    rows: Rows
    logit_blocks: Rows
    states: torch.Tensor | None  # [checkpoints, layers, count]
    heads: Rows | None = None


def measure(exercises: Sequence[Exercise], side: Left, exact: Left, device: str) -> dict[Key, Measured]:
    """Distances of everything that float64 ran too. `device` does the arithmetic."""
    found = {}
    for exercise in (e for e in exercises if e.kind in (FORCED, FILLED)):
        for mode in exercise.modes:
            found[exercise.name, mode] = _measure(exercise, side.of(exercise, mode), exact.of(exercise, EAGER), device)
    return found


def _measure(exercise: Exercise, side: Record, exact: Record, device: str) -> Measured:
    got, want = ({n: t.to(device) for n, t in r.tensors.items()} for r in (side, exact))
    steps, width = got["logits"].shape[:2]
    sequence = (torch.arange(width) // exercise.q).repeat(steps)
    logits, hidden, want_logits, want_hidden = (
        t.flatten(0, 1) for t in (got["logits"], got["hidden"], want["logits"], want["hidden"])
    )
    rows = distance.rows(logits, hidden, want_logits, want_hidden, sequence)
    blocks = distance.relative(distance.in_blocks(logits.double()), distance.in_blocks(want_logits.double()))
    blocks = torch.where(torch.isfinite(blocks), blocks, torch.inf)
    states = None
    if exercise.states:
        pairs = zip(got["states"], want["states"], strict=True)
        states = torch.stack([state_distances(g, w) for g, w in pairs]).cpu()
    heads = None
    if exercise.heads:
        given, wanted = got["heads"].flatten(0, 1), want["heads"].flatten(0, 1)
        heads = _kept(distance.rows(logits, given, want_logits, wanted, sequence))
    here = _kept(rows)
    return Measured(here, replace(here, blocks=blocks.cpu()), states, heads)


def _kept(rows: Rows) -> Rows:
    """On the CPU."""
    return Rows(rows.sequence, *(getattr(rows, name).cpu() for name in distance.FIELDS))


def judge(exercises: Sequence[Exercise], tested: Mapping[Key, Measured], stock: Mapping[Key, Measured]) -> Finding:
    """`tested` and `stock` hold at least the forced and filled exercises that are named."""
    breaches: list[Breach] = []
    numbers: dict[str, Any] = {"exercises": {}, "modes": {}, "drift": {}}
    forced = [e for e in exercises if e.kind in (FORCED, FILLED)]
    for exercise in forced:
        for mode in exercise.modes:
            key = (exercise.name, mode)
            found, numbers["exercises"][" ".join(key)] = _single(key, exercise, tested[key], stock[key])
            breaches += found
            mine, theirs = tested[key].states, stock[key].states
            if mine is not None and theirs is not None:
                found, numbers["drift"][" ".join(key)] = _drift(" ".join(key), mine, theirs)
                breaches += found
    for mode in dict.fromkeys(mode for e in forced for mode in e.modes):
        keys = [(e.name, mode) for e in forced if mode in e.modes and e.kind == FORCED and not e.states]
        if keys:
            found, numbers["modes"][mode] = _pooled(mode, [tested[k] for k in keys], [stock[k] for k in keys])
            breaches += found
    return Finding(tuple(ordered(breaches)), {k: v for k, v in numbers.items() if v})


def _single(key: Key, exercise: Exercise, tested: Measured, stock: Measured) -> tuple[list[Breach], dict[str, Any]]:
    code, where = LONG_CONTEXT if exercise.kind == FILLED and not exercise.heads else LOGITS, " ".join(key)
    t, s = tested.rows, stock.rows
    if t.not_finite:
        text = f"{where}: {t.not_finite} of {len(t.finite)} rows are not finite"
        return [Breach(LOGITS, text)], {"rows": len(t.finite), "not_finite": t.not_finite}
    hidden = distance.median_ratio("hidden", t, s).estimate
    block, local = _worst_block(t, s, beside=True)
    vocab, local_vocab = _worst_block(tested.logit_blocks, stock.logit_blocks, beside=True)
    place, far = _worst_sequence(t, s)
    checks: tuple[Check, ...] = (
        (hidden.low, at_most.SINGLE, "the hidden rows are surely"),
        (hidden.point, at_most.ALONE, "the hidden rows are"),
        (local, at_most.BLOCK_SINGLE, f"beside the others, {_columns(block)} of the hidden rows are"),
        (local_vocab, at_most.BLOCK_SINGLE, f"beside the others, {_columns(vocab)} of the logits are"),
        (far, at_most.SEQUENCE, f"sequence {place} is, at every step,"),
    )
    values = {
        "rows": len(t.finite),
        "hidden": shown(hidden),
        "stock_hidden": brief(float(s.hidden.median())),
        "block": [block, brief(local)],
        "logit_block": [vocab, brief(local_vocab)],
        "sequence": [place, brief(far)],
        "top1": [brief(float(side.right.double().mean())) for side in (t, s)],
    }
    if exercise.heads:
        assert tested.heads is not None and stock.heads is not None
        more, values["heads"] = _heads(tested.heads, stock.heads)
        checks += more
    return [_farther(code, where, what, ratio, most) for ratio, most, what in checks if not ratio <= most], values


def _heads(tested: Rows, stock: Rows) -> tuple[tuple[Check, ...], dict[str, Any]]:
    """What is asked of hidden rows and their blocks, of what the attention gives: a block is one head of one layer."""
    whole = distance.median_ratio("hidden", tested, stock).estimate
    block, local = _worst_block(tested, stock, beside=True)
    checks = (
        (whole.low, at_most.SINGLE, "the attention's outputs are surely"),
        (whole.point, at_most.ALONE, "the attention's outputs are"),
        (local, at_most.BLOCK_SINGLE, f"beside the others, {_columns(block)} of the attention's outputs are"),
    )
    return checks, {
        "outputs": shown(whole),
        "stock": brief(float(stock.hidden.median())),
        "block": [block, brief(local)],
    }


def _pooled(mode: str, tested: list[Measured], stock: list[Measured]) -> tuple[list[Breach], dict[str, Any]]:
    t, s = distance.pooled([m.rows for m in tested]), distance.pooled([m.rows for m in stock])
    ratios = {name: distance.median_ratio(name, t, s).estimate for name, _ in POOLED}
    breaches = [
        _farther(LOGITS, mode, f"{name} are", ratios[name].point, most)
        for name, most in POOLED
        if not ratios[name].point <= most
    ]
    values: dict[str, Any] = {name: shown(ratio) for name, ratio in ratios.items()}
    values["stock"] = {name: brief(float(getattr(s, name).median())) for name, _ in POOLED}
    blocks = {
        "hidden rows": (t, s),
        "logits": (distance.pooled([m.logit_blocks for m in tested]), distance.pooled([m.logit_blocks for m in stock])),
    }
    for what, (mine, theirs) in blocks.items():
        block, ratio = _worst_block(mine, theirs, beside=False)
        values[f"block of {what}"] = [block, brief(ratio)]
        if not ratio <= at_most.BLOCK:
            breaches.append(_farther(LOGITS, mode, f"{_columns(block)} of the {what} are", ratio, at_most.BLOCK))
    limit = at_most.FAR * s.hidden.median()
    found, values["far"] = _tested(LOGITS, f"{mode}: rows near float64", t.hidden <= limit, s.hidden <= limit)
    lost, values["agreement"] = _tested(AGREEMENT, f"{mode}: float64's greedy token", t.right, s.right)
    return breaches + found + lost, values


def _tested(code: str, what: str, mine: torch.Tensor, theirs: torch.Tensor) -> tuple[list[Breach], dict[str, Any]]:
    """Exact McNemar test of rows that are right on one side only."""
    pairs = pair(mine.tolist(), theirs.tolist())
    p = mcnemar(pairs).worse
    values = {
        "items": pairs.items,
        "candidate": brief(pairs.candidate_accuracy),
        "stock": brief(pairs.stock_accuracy),
        "losses": pairs.losses,
        "wins": pairs.wins,
        "p": brief(p),
        "difference": shown(difference(pairs)),
    }
    text = f"{what}: of {pairs.items} rows the candidate loses {pairs.losses} that stock has and wins {pairs.wins}"
    return ([Breach(code, f"{text} (exact McNemar p = {p:.1e})")] if p < at_most.ALPHA else []), values


def _drift(where: str, mine: torch.Tensor, theirs: torch.Tensor) -> tuple[list[Breach], dict[str, Any]]:
    m, s = drift(mine), drift(theirs)
    ratio = m.typical / s.typical
    worst = int(ratio.argmax())
    growth = float(ratio[-1] / ratio[0])
    values = {
        "candidate": [brief(x) for x in m.typical.tolist()],
        "stock": [brief(x) for x in s.typical.tolist()],
        "slope": [brief(m.slope), brief(s.slope)],
        "growth": brief(growth),
    }
    if m.not_finite:
        return [Breach(DRIFT, f"{where}: states of {m.not_finite} sequences and checkpoints are not finite")], values
    breaches = []
    if not float(ratio[worst]) <= at_most.DRIFT:
        what = f"states at checkpoint {worst + 1} of {len(ratio)} are"
        breaches.append(_farther(DRIFT, where, what, float(ratio[worst]), at_most.DRIFT))
    if not growth <= at_most.GROWTH:
        text = f"{where}: the states' distance from float64 over stock's grows {growth:.2f}x from the first to the last"
        breaches.append(Breach(DRIFT, f"{text} checkpoint, allowed {at_most.GROWTH:.2f}x"))
    return breaches, values


def _worst_block(tested: Rows, stock: Rows, beside: bool) -> tuple[int, float]:
    """The block of columns with the largest ratio; `beside`: over the middle block's."""
    ratios = distance.block_ratios(tested, stock)
    ratios = ratios / ratios.median() if beside else ratios
    index = int(ratios.argmax())
    return index, float(ratios[index])


def _worst_sequence(tested: Rows, stock: Rows) -> tuple[int, float]:
    """The sequence whose best row is worst, and that row's distance over stock's usual one, here or everywhere: 1 if
    both are 0, infinite if only stock's is, as everywhere (`distance.Ratio`)."""
    found = []
    usual = float(stock.hidden.median())
    for name in torch.unique(tested.sequence).tolist():
        mine, theirs = (side.hidden[side.sequence == name] for side in (tested, stock))
        best, allowed = float(mine.min()), max(float(theirs.median()), usual)
        found.append((best / allowed if allowed else math.inf if best else 1.0, int(name)))
    ratio, place = max(found)
    return place, ratio


def _columns(block: int) -> str:
    return f"columns {block * BLOCK} to {(block + 1) * BLOCK - 1}"


def _farther(code: str, where: str, what: str, ratio: float, most: float) -> Breach:
    return Breach(code, f"{where}: {what} {ratio:.2f}x as far from float64 as stock's, allowed {most:.2f}x")
