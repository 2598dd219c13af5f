"""When a measured point is a win, a tie, or leaves the envelope."""

from collections.abc import Iterable, Mapping

from kgen.records.evidence import PerfPoint

WIN_LIMIT = 1.00  # the 95 % upper bound of candidate / best baseline: not slower, with all the doubt counted against it
TIE_LIMIT = 1.03  # within the spread of two runs of the same kernel
HEADLINE = "graph"  # the column that decides: how a decode step runs. The others are shown beside it


def label(ratio_high: float) -> str:
    """`win`, `tie` or `left` for the upper bound of a ratio; NaN leaves."""
    if ratio_high <= WIN_LIMIT:
        return "win"
    return "tie" if ratio_high <= TIE_LIMIT else "left"


def envelope(points: Iterable[PerfPoint]) -> Mapping[str, str]:
    """Problem key -> `win` or `tie` by the headline column; a bin is as good as the worst count that it serves.

    Keys with a point that left, and keys without a headline point, are not in it.
    """
    worst: dict[str, float] = {}
    for point in points:
        if point.column == HEADLINE:
            high = point.ratio_high if point.ratio_high == point.ratio_high else float("inf")
            worst[point.problem] = max(worst.get(point.problem, 0.0), high)
    labels = {key: label(high) for key, high in worst.items()}
    return {key: text for key, text in labels.items() if text != "left"}
