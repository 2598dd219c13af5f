"""Where a wrong tensor is wrong: positions, ratios and pattern words from the elements that are too far away.

    localise(got, want, limit, axes) -> Where      # one tensor
    Places.add(row, got, want, ...)                # of all comparisons of a gate: failing ones are localised
    Places.as_json()                               # the evidence: what they have in common comes first

Nothing of the answers leaves this file beyond positions, factors and words. It judges nothing. Not covered: causes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

FAR = 4.0  # an element is wrong when it is off by more than this many allowed errors
ROUNDING = 2.0**-7  # and by more than this share of itself: bf16 cannot hold it nearer
CLOSE = 0.03  # relative L2 below which two things are taken for the same
DENSE = 0.3  # of the box of the positions found that must be wrong, so that the box means something
TILES = (128, 64, 32, 16, 8)
MAX_ROWS = 64  # looked at for exchanged rows
MAX_ELEMENTS = 1 << 24  # of a tensor that is looked at whole; of a larger one the first rows
SHOWN, LISTED = 12, 4
GROWTH = 3.0  # of the error from the first kept step to the last: drift


@dataclass(frozen=True)
class Where:
    """`patterns`: most telling first; `axes`: where along each axis, "" for everywhere; `worst`: positions."""

    wrong: int
    total: int
    patterns: tuple[str, ...]
    axes: Mapping[str, str]
    worst: tuple[tuple[int, ...], ...]


def localise(got: torch.Tensor, want: torch.Tensor, limit: float, axes: Sequence[str] = ()) -> Where:
    """`limit`: relative error that is allowed. `axes`: names of the dimensions, outermost first. Shapes are equal."""
    total = got.numel()
    if got.dim() == 0:
        got, want = got.reshape(1), want.reshape(1)
    rows = max(1, MAX_ELEMENTS * got.shape[0] // max(1, total))
    g, w = got[:rows].double(), want[:rows].double()
    names = [*axes, *(f"axis{i}" for i in range(len(axes), g.dim()))][: g.dim()]
    wrong = _wrong(g, w, limit)
    count = int(wrong.sum())
    if not count:
        return Where(0, total, ("no element stands out: the error is small and everywhere",), {}, ())
    hits = [wrong.movedim(i, 0).reshape(n, -1).any(dim=1).nonzero().view(-1).tolist() for i, n in enumerate(g.shape)]
    box = 1
    for hit in hits:
        box *= len(hit)
    dense = count / box >= DENSE
    places = {name: _along(hit, n, name, dense) for name, hit, n in zip(names, hits, g.shape, strict=True)}
    patterns = [*_values(g, w, wrong), *_moved(g, w, wrong, names[0]), *(p for p in places.values() if p)]
    if len(patterns) == 0 and count / g.numel() > 0.5:
        patterns += _sum_share(g, w)
    error = (g - w).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    worst = torch.topk(torch.where(wrong, error, -1.0).reshape(-1), min(3, count)).indices.tolist()
    return Where(count, total, tuple(patterns), places, tuple(_position(i, g.shape) for i in worst))


def _wrong(g: torch.Tensor, w: torch.Tensor, limit: float) -> torch.Tensor:
    finite = w.isfinite()
    flat = torch.where(finite, w, 0.0).reshape(w.shape[0], -1)
    rms = flat.square().mean(dim=1).sqrt()
    rms = torch.maximum(rms, 1e-6 * rms.max()).reshape(-1, *[1] * (w.dim() - 1))
    far = (g - w).abs() > FAR * limit * rms + (ROUNDING if limit else 0.0) * w.abs()
    return (far & g.isfinite() & finite) | (g.isfinite() != finite)


def _position(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    out = []
    for n in reversed(shape):
        out.append(index % n)
        index //= n
    return tuple(reversed(out))


def _along(hit: list[int], n: int, name: str, dense: bool) -> str:
    """Words for these indices of an axis of n; "" for all of them, or for no rule."""
    k, first, last = len(hit), hit[0], hit[-1]
    if k == n or (not dense and k < 3):
        return ""
    if k == 1:
        return f"only {name} {first}"
    steps = {b - a for a, b in itertools.pairwise(hit)}
    if steps == {1}:
        if not dense:
            return ""
        tile = next((t for t in TILES if first % t == 0 and k % t == 0 and n % t == 0 and t < n), 0)
        whole = f", {k // tile} whole tile{'s' * (k > tile)} of {tile}" if tile else ""
        if last == n - 1:
            return f"the last {k} of {n} along {name} (from {first}{whole})"
        return f"{name} {first} to {last}{whole}"
    if len(steps) == 1 and k >= 3 and first - (step := steps.pop()) < 0 and last + step >= n:
        return f"every {_ordinal(step)} {name} from {first}"
    for period in (2, 4, 8, 16, 32, 64, 128, 256):
        inside = sorted({h % period for h in hit})
        if period * 2 <= n and len(inside) < period and k == sum(i % period in set(inside) for i in range(n)):
            parts = f"{inside[0]} to {inside[-1]}" if inside[-1] - inside[0] + 1 == len(inside) else str(inside[:SHOWN])
            return f"{name} {parts} of every {period}"
    return f"{name} {', '.join(map(str, hit))}" if dense and k <= SHOWN else ""


def _ordinal(n: int) -> str:
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _values(g: torch.Tensor, w: torch.Tensor, wrong: torch.Tensor) -> list[str]:
    """What the wrong elements hold, compared with what they should."""
    a, b = g[wrong], w[wrong]
    bad = ~a.isfinite()
    if bool(bad.any()):
        share = "all" if bool(bad.all()) else f"{int(bad.sum())} of {bad.numel()}"
        return [f"NaN or inf in {share} wrong elements"]
    if not bool(b.isfinite().all()):
        return ["finite where NaN or inf belongs"]
    if bool((a == 0).all()):
        return ["zeros: not written, or nothing summed"]
    if a.numel() >= 8 and bool((a == a[0]).all()):
        return ["all wrong elements hold one value: not written, or a constant"]
    factor = float((a * b).sum() / b.square().sum().clamp_min(1e-300))
    rest = float(torch.linalg.vector_norm(a - factor * b) / torch.linalg.vector_norm(a).clamp_min(1e-300))
    if a.numel() < 8 or rest > CLOSE:
        return []
    if abs(factor + 1) < 0.02:
        return ["the sign is turned"]
    return [f"all wrong elements are scaled by one factor, about {factor:.3g}"]


def _moved(g: torch.Tensor, w: torch.Tensor, wrong: torch.Tensor, axis: str) -> list[str]:
    """Right values in the wrong place."""
    if g.dim() < 2 or not bool(g.isfinite().all() & w.isfinite().all()):
        return []
    a, b = g.reshape(g.shape[0], -1), w.reshape(g.shape[0], -1)
    if min(a.shape) > 1 and a.shape[1] > 2 and _same(a.reshape(a.shape[1], a.shape[0]).T, b):
        return ["transposed"]
    for shift in (1, -1):
        if a.shape[1] > 8 and _same(a.roll(shift, 1)[:, 1:-1], b[:, 1:-1]):
            return [
                f"shifted by one along the last axis: place i holds what belongs at {'i+1' if shift > 0 else 'i-1'}"
            ]
    rows = wrong.reshape(a.shape[0], -1).any(dim=1).nonzero().view(-1).tolist()[:MAX_ROWS]
    held = {i: j for i in rows if (j := _held(a[i], b[:MAX_ROWS], i)) is not None}
    if not held or len(held) < 0.5 * len(rows):
        return []
    offsets = {j - i for i, j in held.items()}
    if len(held) > 1 and len(offsets) == 1:
        return [f"off by {offsets.pop():+d} along {axis}: each holds what belongs to another"]
    if all(held.get(j) == i for i, j in held.items()):
        i, j = next(iter(held.items()))
        return [f"{axis} {i} and {j} are exchanged{' (and others)' if len(held) > 2 else ''}"]
    i, j = next(iter(held.items()))
    return [f"{axis} {i} holds what belongs to {j}{' (and others)' if len(held) > 1 else ''}"]


def _held(row: torch.Tensor, rows: torch.Tensor, own: int) -> int | None:
    norm = torch.linalg.vector_norm(rows, dim=1)
    away = torch.linalg.vector_norm(rows - row, dim=1) / norm.clamp_min(1e-300)
    away[norm == 0] = float("inf")
    if own < len(away):
        away[own] = float("inf")
    best = int(away.argmin())
    return best if row.numel() >= 4 and float(away[best]) < CLOSE else None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    norm = torch.linalg.vector_norm(b)
    return bool(norm > 0) and float(torch.linalg.vector_norm(a - b) / norm) < CLOSE


def _sum_share(g: torch.Tensor, w: torch.Tensor) -> list[str]:
    """Terms left out of a sum of unrelated terms: the projection on the answer and the error tell the same share."""
    norm = w.square().sum()
    lost = float(1 - (g * w).sum() / norm)
    apart = float((g - w).square().sum() / norm)
    if apart < 1e-3 or abs(abs(lost) - apart) > 0.25 * apart:
        return ["everywhere, and unlike the answer by no simple rule"]
    how = "were left out of" if lost > 0 else "were added twice to"
    return [f"everywhere, as if about {apart:.2g} of the terms {how} each sum (a slice of K?)"]


@dataclass(frozen=True)
class _Seen:
    tokens: int
    what: str
    output: str
    step: int
    strain: float
    failed: bool


@dataclass
class Places:
    """All comparisons of one gate; the failing ones with their places, at most LISTED."""

    _seen: list[_Seen] = field(default_factory=list)
    _where: list[dict[str, Any]] = field(default_factory=list)

    def note(self, tokens: int, what: str, output: str, step: int, strain: float, failed: bool) -> None:
        self._seen.append(_Seen(tokens, what, output, step, strain, failed))

    def wants(self, what: str, output: str) -> bool:
        """Whether one more failing comparison is worth the work."""
        return len(self._where) < LISTED and (what, output) not in {(w["what"], w["output"]) for w in self._where}

    def add(self, problem: str, what: str, output: str, step: int, where: Where) -> None:
        patterns, worst = list(where.patterns), [list(p) for p in where.worst]
        body = {"problem": problem, "what": what, "output": output, "step": step, "wrong": where.wrong}
        self._where.append({**body, "total": where.total, "patterns": patterns, "worst": worst})

    def as_json(self) -> list[dict[str, Any]]:
        """What failing comparisons have in common, then each of them; empty when none failed."""
        common = across(self._seen)
        return [*([{"patterns": common}] if common else []), *self._where]


def across(seen: Sequence[_Seen]) -> list[str]:
    """What separates the comparisons that failed from those that did not."""
    bad, good = [s for s in seen if s.failed], [s for s in seen if not s.failed]
    if not bad:
        return []
    found = []
    outputs = {s.output for s in bad}
    if outputs < {s.output for s in seen}:
        found.append(f"only in {', '.join(sorted(outputs))}")
    right, wrong = {s.tokens for s in good if s.output in outputs}, {s.tokens for s in bad}
    if right and max(right) < min(wrong):
        found.append(f"only when tokens > {max(right)}")
    elif right and min(right) > max(wrong):
        found.append(f"only when tokens < {min(right)}")
    elif wrong.isdisjoint(right) and right:
        found.append(f"only at tokens {', '.join(map(str, sorted(wrong)))}")
    families, others = {s.what for s in bad}, {s.what for s in good if s.tokens in wrong and s.output in outputs}
    if others and families.isdisjoint(others):
        found.append(f"only on input {', '.join(sorted(families))}")
    return found + _drift(seen)


def _drift(seen: Sequence[_Seen]) -> list[str]:
    groups: dict[tuple[int, str, str], dict[int, float]] = {}
    for s in seen:
        groups.setdefault((s.tokens, s.what, s.output), {})[s.step] = s.strain
    for (_, what, output), steps in groups.items():
        errors = [steps[k] for k in sorted(steps)]
        rising = all(a <= b for a, b in itertools.pairwise(errors))
        if len(errors) > 2 and rising and errors[-1] > 1 and errors[-1] >= GROWTH * errors[0]:
            return [
                f"drifts with step: the error of {output} on {what} grows {errors[-1] / max(errors[0], 1e-9):.3g}"
                f" times from step {min(steps)} to {max(steps)}"
            ]
    return []
