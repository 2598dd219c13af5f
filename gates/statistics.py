"""Paired statistics of times: the median ratio and its bootstrap interval. Nothing here knows what was timed."""

from collections.abc import Sequence

import torch

RESAMPLES = 4000
CONFIDENCE = 0.95


def median(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _row_medians(rows: torch.Tensor) -> torch.Tensor:
    ordered, count = rows.sort(dim=1).values, rows.shape[1]
    return (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2


def ratio_interval(
    candidate: Sequence[float], baseline: Sequence[float], seed: int, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """(median, low, high) of candidate/baseline over pairs taken in the same repetition; 95 % percentile bootstrap.

    Raises ValueError for samples that are not paired or empty.
    """
    if not candidate or len(candidate) != len(baseline):
        raise ValueError(f"paired samples needed, got {len(candidate)} and {len(baseline)}")
    ratios = torch.tensor([c / b for c, b in zip(candidate, baseline, strict=True)], dtype=torch.float64)
    drawn = torch.randint(len(ratios), (resamples, len(ratios)), generator=torch.Generator().manual_seed(seed))
    medians = _row_medians(ratios[drawn]).sort().values
    tail = (1 - CONFIDENCE) / 2
    low, high = medians[int(tail * resamples)], medians[min(resamples - 1, int((1 - tail) * resamples))]
    return median(ratios.tolist()), float(low), float(high)
