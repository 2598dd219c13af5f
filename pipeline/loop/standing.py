"""How the candidates of a run stand to one another, for whoever is told of verdicts: a mailbox, a client of `kgen mcp`.

The order is the one that questions show (kgen.proposers.feedback): a clock's word first, else what orders a round. Only
reads the run folder. Not covered: what the population keeps (`population`), and how it reads (kgen.proposers).
"""

from collections.abc import Sequence

from kgen.contract.op import Op
from kgen.diagnosis import static
from kgen.loop.building import quick_result
from kgen.loop.history import timed_points
from kgen.loop.ranking import costs
from kgen.loop.rounds import read_rounds
from kgen.loop.settings import Settings
from kgen.proposers.base import Place, Standings
from kgen.proposers.feedback import places
from kgen.records import Verdict
from kgen.store.candidates import CandidateFolder
from kgen.store.runs import Run

Judged = Sequence[tuple[CandidateFolder, Verdict]]


def standings(run: Run, op: Op, settings: Settings, judged: Judged | None = None, over: str = "") -> Standings:
    """`judged`: the candidates with a verdict, read here by default; `over`: why nothing more is asked.

    Raises IntegrityError.
    """
    found = [(f, v) for f in run.folders() if (v := f.verdict()) is not None] if judged is None else judged
    history, rounds = tuple((f.candidate(), v) for f, v in found), read_rounds(run)
    folders = {c.id: f for (c, _), (f, _) in zip(history, found, strict=True)}
    known, names = costs(rounds), {f.path.name: c for c, f in folders.items()}
    ranked, measure = places(
        history,
        {c: timed for c, f in folders.items() if (timed := timed_points(settings, f))},
        {c: known[f.path.name] for c, f in folders.items() if f.path.name in known},
        any(entry.measured for r in rounds for entry in r.order),
    )
    latest = next((r.candidates for r in reversed(rounds) if any(n in names for n in r.candidates)), ())
    return Standings(
        places=ranked,
        measure=measure,
        costs=_static(ranked, folders),
        latest=tuple(names[n] for n in latest if n in names),
        over=over,
        small=op.pack.small,
    )


def _static(ranked: Sequence[Place], folders: dict[str, CandidateFolder]) -> dict[str, tuple[str, ...]]:
    """What the static cost of each is made of; nothing where an older kgen built it."""
    said = {}
    for place in ranked:
        quick = quick_result(folders[place.id])
        if quick is not None and (lines := static.lines(quick.evidence.get("cost"))):
            said[place.id] = tuple(lines)
    return said
