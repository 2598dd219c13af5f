"""The version of the gates' rules, and the faults that they are tried on."""

from collections.abc import Iterable

GATE_CONTRACT = 2  # raised when a rule or a tolerance changes: older evidence is then stale
DEFECTS = ("tile_scale", "drop_last_k")  # planted in builds of a candidate: the model gate must refuse every one


def few_bins(bins: Iterable[int]) -> list[int]:
    """A narrow, a middle and a wide one of these token bins: where mutants are built, and brief exercises run."""
    known = sorted(set(bins))
    return sorted({known[0], known[len(known) // 2], known[-1]})
