"""When a run ends, and why: one rule after the other, the first that holds is the recorded reason.

Without `--patience` and `--stop-roofline` a run ends as soon as a candidate is as far as this machine can take it; with
either of them it goes on to improve that candidate. Not covered: money and GPU time of a single request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kgen.loop.plans import STOP, Decision
from kgen.loop.population import Specimen, last_gain
from kgen.loop.settings import Settings

BY_CLOCK = ("minutes", "usd", "budget")  # rules that another machine, or another price, would decide otherwise


@dataclass(frozen=True)
class Standing:
    """How a run stands after round `round`. `reached`: a candidate got as far as this machine can take it.

    `refused` is what a ledger of budgets has against going on, "" when nothing.
    """

    round: int
    history: Sequence[Specimen]
    candidates_left: int
    seconds_left: float
    spent_usd: float
    reached: bool
    refused: str = ""


def stop(standing: Standing, settings: Settings) -> Decision | None:
    """Why no further round follows, None while one may."""
    improving = settings.patience or settings.stop_roofline
    gain = last_gain(standing.history)
    idle = standing.round - gain
    best = max(standing.history, key=lambda s: s.roofline * s.right, default=None)
    roofline = best.roofline if best and best.right else 0.0
    rules = (
        (
            0 < settings.stop_roofline <= roofline,
            "roofline",
            f"{best.id[:12] if best else ''} reaches {roofline:.3f} of the roofline ({settings.stop_roofline:g} asked)",
        ),
        (not improving and standing.reached, "reached", "a candidate got as far as this machine can take it"),
        (0 < settings.patience <= idle, "patience", f"no gain in {idle} rounds (the last was in round {gain})"),
        (standing.round >= settings.rounds, "rounds", f"{settings.rounds} rounds done"),
        (standing.candidates_left <= 0, "candidates", f"{settings.candidates} candidates judged"),
        (standing.seconds_left <= 0, "minutes", f"{settings.minutes:g} minutes used up"),
        (0 < settings.max_usd <= standing.spent_usd, "usd", f"{standing.spent_usd:.2f} USD spent"),
        (bool(standing.refused), "budget", standing.refused),
    )
    return next((Decision(STOP, text, rule=rule) for holds, rule, text in rules if holds), None)
