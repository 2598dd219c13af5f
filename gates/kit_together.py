"""One full-model-eval for the candidates of several runs, all in their seats at once: `python kit.pyz --together`.

A pass is evidence for each of them: launches were counted op by op, the decode was as near to float64 as stock's with
all of them in place, and mutants of each were refused. Each part names the others ("together"); the report says so.
Where only mutants of some ops were let through, the others have passed (modeleval/share.py). Anything else is no
verdict on a single candidate: nothing is kept, and each is judged alone afterwards.
Not covered: a router (the others are measured with given experts), several candidates of one op.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgen.contract import Op
from kgen.gates.kit_units import MODEL, Done, Ensemble, Say, Unit, piece
from kgen.gates.modeleval import share
from kgen.gates.modeleval.given import ROUTER
from kgen.store.runs import utc_now


@dataclass(frozen=True)
class Seat:
    """One run's candidate in the evaluation. `keep(done, started, others)` writes a part into that run's evidence."""

    op: Op
    unit: Unit
    keep: Callable[[Done, str, Mapping[str, str]], None]


def apart(op: Op) -> bool:
    """Whether an op is always judged alone."""
    return op.name == ROUTER


def judge(seats: Sequence[Seat], run: Ensemble, cache: Path, deadline: float, say: Say) -> None:
    """Evaluate one candidate of each op together, and keep a pass for every op that has one."""
    names = {seat.op.name: seat.unit.candidate for seat in seats}
    where = f"full-model-eval of {', '.join(f'{op} {c[:12]}' for op, c in names.items())} together"
    say(f"{where} ...")
    started = utc_now()
    ops, units = [seat.op for seat in seats], [seat.unit for seat in seats]
    done = piece(MODEL, "full-model-eval together", deadline, say, lambda: run(ops, units, cache, deadline))
    result = done.result
    say(f"{where}: {result.status}  {result.code}  {result.message[:1000]}  ({result.seconds:.0f} s)")
    alone = []
    for seat in seats:
        own = share.of(result, seat.op.name)
        if own.passed:
            seat.keep(replace(done, result=own), started, {op: c for op, c in names.items() if op != seat.op.name})
        else:
            alone.append(seat.op.name)
    if alone:
        say(f"that is no verdict on {', '.join(alone)}: judged alone")
