"""One full-model-eval for the candidates of several runs, all in their seats at once: `python kit.pyz --together`.

A pass is evidence for each of them: launches were counted op by op, the decode was as near to float64 as stock's with
all of them in place, and mutants of each were refused. Each part names the others ("together"); the report says so.
Anything but a pass is no verdict on a single candidate: nothing is kept, and each is judged alone afterwards.
Not covered: a router (the others are measured with given experts), several candidates of one op.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgen.contract import Op
from kgen.gates.kit_units import MODEL, Done, Ensemble, Say, Unit, piece
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


def judge(seats: Sequence[Seat], run: Ensemble, cache: Path, deadline: float, say: Say) -> bool:
    """Evaluate one candidate of each op together; a pass is kept for every one of them. Whether it was one."""
    names = {seat.op.name: seat.unit.candidate for seat in seats}
    where = f"full-model-eval of {', '.join(f'{op} {c[:12]}' for op, c in names.items())} together"
    say(f"{where} ...")
    started = utc_now()
    ops, units = [seat.op for seat in seats], [seat.unit for seat in seats]
    done = piece(MODEL, "full-model-eval together", deadline, say, lambda: run(ops, units, cache, deadline))
    result = done.result
    say(f"{where}: {result.status}  {result.code}  {result.message[:400]}  ({result.seconds:.0f} s)")
    if not result.passed:
        say("that is no verdict on any one of them: each is judged alone")
        return False
    for seat in seats:
        seat.keep(done, started, {op: c for op, c in names.items() if op != seat.op.name})
    return True
