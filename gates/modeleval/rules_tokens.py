"""Rules on tokens: free generation, drafts, tasks, long prompts, grammars, sampling. Stock is the other side.

A hazard ratio refuses when the lower bound of its interval is above the limit: free generation of two correct engines
parts at near ties, and only what the data prove counts. The interval is two-sided with HAZARD_ALPHA; of the exact
one (few departures) and the paired one (sequences differ) the lower bound that proves less is taken. A yardstick that
never departs is none: a candidate that would be refused against it is not judged.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from kgen.gates.modeleval import limits as at_most
from kgen.gates.modeleval.breach import (
    AGREEMENT,
    CONSTRAINED,
    LOGITS,
    LONG_CONTEXT,
    SAMPLING,
    SPECULATIVE,
    TASKS,
    Breach,
    Finding,
    brief,
    shown,
)
from kgen.gates.modeleval.divergence import Hazards, Times, compare, first_departures
from kgen.gates.modeleval.exercise import EAGER, OTHER, Exercise, Seeds
from kgen.gates.modeleval.paired import Pairs, difference, lower_bound, mcnemar, pair
from kgen.gates.modeleval.questions import questions
from kgen.gates.modeleval.sides import Left, Record
from kgen.model.generation.homogeneity import same_distribution
from kgen.model.nano.scoring import fits
from kgen.model.nano.tasks import Item
from kgen.model.nano.vocabulary import decode, until_end

Mark = Callable[[Item, Sequence[int]], bool]


def free(exercise: Exercise, mode: str, candidate: Left, stock: Left, exact: Left | None) -> Finding:
    """First departures from float64's continuation, against stock's from it.

    Where float64 does not run it: from stock's, against those of stock where it reads its own in wide verify steps.
    """
    mine, own = candidate.of(exercise, mode).tensors, stock.of(exercise, mode).tensors["tokens"]
    if broken := int((~mine["finite"]).sum()):
        text = f"{exercise.name} {mode}: logits of {broken} tokens are not finite"
        return Finding((Breach(LOGITS, text),), {"not_finite": broken})
    if exercise.exact and exact is not None:
        truth = exact.of(exercise, EAGER).tensors["tokens"]
        hazards = _hazards(first_departures(mine["tokens"], truth), first_departures(own, truth))
    else:
        other = stock.of(exercise, f"{OTHER} {mode}").tensors["tokens"][:, : own.shape[1]]
        hazards = _hazards(first_departures(mine["tokens"], own), first_departures(other, own))
    return _refused(AGREEMENT, f"{exercise.name} {mode}: free generation", hazards)


def verify(exercise: Exercise, mode: str, candidate: Left, stock: Left) -> Finding:
    """Departures of decoding with drafts from decoding without, against the same in stock."""
    mine, theirs = (side.of(exercise, mode).tensors for side in (candidate, stock))
    if broken := int(mine["not_finite"]):
        return Finding((_not_finite(exercise, mode, broken),), {"not_finite": broken})
    times = [first_departures(t["drafted"], t["plain"]) for t in (mine, theirs)]
    found = _refused(SPECULATIVE, f"{exercise.name} {mode}: decoding with drafts", _hazards(*times))
    steps = [brief(exercise.steps / float(t["drafted steps"].double().mean())) for t in (mine, theirs)]
    return Finding(found.breaches, {**found.numbers, "tokens_per_step": steps}, found.unjudged)


def _hazards(candidate: Times, yardstick: Times) -> Hazards:
    return compare(candidate, yardstick, at_most.HAZARD_ALPHA)


def _refused(code: str, what: str, hazards: Hazards) -> Finding:
    low = min(hazards.exact.low, hazards.paired.low)
    numbers = {
        "hazard": [brief(hazards.ratio), brief(low), brief(max(hazards.exact.high, hazards.paired.high))],
        "departures": list(hazards.departures),
        "watched": list(hazards.watched),
        "mean_agreed": [brief(x) for x in hazards.mean_agreed],
        "horizon": hazards.horizon,
    }
    if low <= at_most.HAZARD:
        return Finding((), numbers)
    counts = f"{hazards.departures[0]} times in {hazards.watched[0]} tokens, stock's yardstick {hazards.departures[1]}"
    text = f"{what} departs {counts} in {hazards.watched[1]}: at least {low:.2f}x as often"
    if not hazards.departures[1] and code == AGREEMENT:
        why = "stock says the same in decode and in verify steps, so that there is no yardstick"
        return Finding((), numbers, (f"{text}, but {why}",))
    return Finding((Breach(code, f"{text}, allowed {at_most.HAZARD:.2f}x"),), numbers)


def tasks(
    exercise: Exercise, mode: str, candidate: Left, stock: Left, seeds: Seeds, mark: Mark, allowed: float
) -> Finding:
    """Accuracy of the tasks that stock answers: the lower bound of the difference, all such items together."""
    marks = _marks(exercise, mode, candidate, stock, seeds, mark)
    numbers: dict[str, Any] = {name: _accuracy(pairs) for name, pairs in marks.items()}
    gated = [name for name, pairs in marks.items() if pairs.stock_accuracy >= at_most.GATED]
    if not gated:
        best = max(marks, key=lambda name: marks[name].stock_accuracy)
        text = f"stock answers no task {at_most.GATED:.0%} of the time; best: {best}, {marks[best].stock_accuracy:.1%}"
        return Finding((), numbers, (f"{exercise.name} {mode}: {text}; train the small model longer",))
    whole = _sum([marks[name] for name in gated])
    low = lower_bound(whole, at_most.ITEMS_CONFIDENCE)
    numbers["gated"] = {"tasks": gated, **_accuracy(whole), "lower_bound": brief(low)}
    if low >= -allowed:
        return Finding((), numbers)
    text = f"{exercise.name} {mode}: {whole.candidate_accuracy:.2%} of {whole.items} items right, stock"
    text += f" {whole.stock_accuracy:.2%}; the difference may be {low:.2%}, allowed {-allowed:.0%}"
    return Finding((Breach(TASKS, text),), numbers)


def long(exercise: Exercise, mode: str, candidate: Left, stock: Left, seeds: Seeds, mark: Mark) -> Finding:
    """Answers behind a long prompt: few items, so that an exact test speaks."""
    (pairs,) = _marks(exercise, mode, candidate, stock, seeds, mark).values()
    p = mcnemar(pairs).worse
    numbers = {**_accuracy(pairs), "context": exercise.context}
    if p >= at_most.LONG_ALPHA:
        return Finding((), numbers)
    text = f"{exercise.name} {mode}: of {pairs.items} items the candidate loses {pairs.losses} and wins {pairs.wins}"
    return Finding((Breach(LONG_CONTEXT, f"{text} (exact McNemar p = {p:.1e})"),), numbers)


def _marks(exercise: Exercise, mode: str, candidate: Left, stock: Left, seeds: Seeds, mark: Mark) -> dict[str, Pairs]:
    """Paired outcomes by task."""
    items = [item for batch in questions(exercise, seeds) for item in batch]
    answers = [_rows(side.of(exercise, mode)) for side in (candidate, stock)]
    outcome: dict[str, list[tuple[bool, bool]]] = {}
    for item, mine, theirs in zip(items, *answers, strict=True):
        outcome.setdefault(item.task, []).append((mark(item, mine), mark(item, theirs)))
    return {name: pair([m for m, _ in both], [t for _, t in both]) for name, both in outcome.items()}


def constrained(exercise: Exercise, mode: str, candidate: Left, stock: Left, seeds: Seeds) -> Finding:
    """Every finished output parses and has the schema's keys and types; as many finish as with stock."""
    mine, theirs = candidate.of(exercise, mode), stock.of(exercise, mode)
    if lacks := mine.words.get("lacks") or theirs.words.get("lacks"):
        return Finding((), {}, (f"{exercise.name} {mode}: {lacks}",))
    if broken := int(mine.tensors["not_finite"]):
        return Finding((_not_finite(exercise, mode, broken),), {"not_finite": broken})
    items = [item for batch in questions(exercise, seeds) for item in batch]
    ended = [[until_end(row) is not None for row in _rows(record)] for record in (mine, theirs)]
    bad = [_misfits(items, _rows(record)) for record in (mine, theirs)]
    pairs = pair(*ended)
    numbers = {"items": pairs.items, "finished": [sum(e) for e in ended], "unparsed": [len(b) for b in bad]}
    if bad[1]:
        return Finding((), numbers, (f"{exercise.name}: {len(bad[1])} outputs of stock do not follow their schema",))
    breaches = []
    if bad[0]:
        text = f"{exercise.name}: {len(bad[0])} outputs do not follow their schema, the first: {bad[0][0]}"
        breaches.append(Breach(CONSTRAINED, text))
    if (p := mcnemar(pairs).worse) < at_most.ALPHA:
        text = f"{exercise.name}: {pairs.losses} outputs no longer end that end with stock, {pairs.wins} the reverse"
        breaches.append(Breach(CONSTRAINED, f"{text} (exact McNemar p = {p:.1e})"))
    return Finding(tuple(breaches), numbers)


def _misfits(items: Sequence[Item], rows: Sequence[Sequence[int]]) -> list[str]:
    """Finished outputs that are no JSON of their item's schema."""
    found = []
    for item, row in zip(items, rows, strict=True):
        said = until_end(row)
        if said is None:
            continue
        try:
            text = decode(said)
            good = fits(json.loads(item.schema), json.loads(text))
        except ValueError as error:
            text, good = str(error), False
        if not good:
            found.append(text[:80])
    return found


def sampling(exercise: Exercise, mode: str, candidate: Left, stock: Left) -> Finding:
    """Homogeneity of the counts of drawn tokens, by settings and by kind of cell, with independent seeds."""
    mine, theirs = (side.of(exercise, mode).tensors for side in (candidate, stock))
    if broken := int(mine["not_drawn"]):
        return Finding((_not_finite(exercise, mode, broken),), {"not_drawn": broken})
    settings, views, _ = mine["counts"].shape
    alpha = at_most.SAMPLING_ALPHA / (settings * views)
    lines, values = [], []
    for n in range(settings):
        for view, name in enumerate(("ranges of ids", "ranks")):
            a, b = (t["counts"][n, view] for t in (mine, theirs))
            kept = (a + b) > 0  # cells that neither side reached say nothing
            found = same_distribution(a[kept].tolist(), b[kept].tolist(), alpha)
            values.append([brief(found.statistic), found.freedom, brief(found.p_value)])
            if not found.same:
                lines.append(f"{name} at settings {n} (p = {found.p_value:.1e})")
    numbers = {"draws": int(mine["counts"][0, 0].sum()), "alpha": alpha, "statistic_freedom_p": values}
    text = f"{exercise.name} {mode}: other tokens are drawn than with stock, by {', '.join(lines)}"
    return Finding((Breach(SAMPLING, f"{text}; allowed p {alpha:.1e}"),) if lines else (), numbers)


def _rows(record: Record) -> list[list[int]]:
    return [[t for t in row if t >= 0] for row in record.tensors["answers"].tolist()]


def _sum(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(*(sum(getattr(p, name) for p in parts) for name in ("both", "losses", "wins", "neither")))


def _accuracy(pairs: Pairs) -> dict[str, Any]:
    return {
        "items": pairs.items,
        "candidate": brief(pairs.candidate_accuracy),
        "stock": brief(pairs.stock_accuracy),
        "losses": pairs.losses,
        "wins": pairs.wins,
        "difference": shown(difference(pairs)),
        "p": brief(mcnemar(pairs).worse),
    }


def _not_finite(exercise: Exercise, mode: str, count: int) -> Breach:
    return Breach(LOGITS, f"{exercise.name} {mode}: logits of {count} rows are not finite")
