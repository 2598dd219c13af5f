"""What the questions of a round say of their run: its limits, whether anything is timed, what earlier runs taught.

Nothing of a clock: asked again, a question is the same text. For this the lessons that a round was told are kept,
<run>/rounds/0001-lessons.txt: other runs may teach more before it is asked again. Not covered: how it reads (the
templates).
"""

from collections.abc import Sequence

from kgen.loop import matrix, rounds
from kgen.loop.lessons import FOLDER, told
from kgen.loop.work import Work
from kgen.proposers.base import Situation
from kgen.records import Verdict
from kgen.store.documents import read_bytes
from kgen.store.errors import StoreError


def situation(work: Work, number: int, judged: Sequence[Verdict]) -> Situation:
    """Of round `number`; `judged`: the run's verdicts so far, whose codes decide which lessons are near.

    Call with the run's lock held. Raises StoreError.
    """
    settings = work.settings
    timed = work.arch in settings.archs
    codes = " ".join(v.failed.code for v in judged if v.failed is not None)
    return Situation(
        rounds=settings.rounds,
        per_round=settings.per_round,
        candidates=settings.candidates,
        minutes=settings.minutes,
        patience=settings.patience,
        roofline=settings.stop_roofline,
        timed=timed,
        measured=work.executor.here and work.arch == settings.archs[0],
        ranked=matrix.quick(work.op, settings),
        interpreted=() if timed else matrix.interpreted(work.op, settings),
        lessons=_lessons(work, number, codes),
    )


def _lessons(work: Work, number: int, words: str) -> str:
    """Lessons that cannot be read are none: a question can do without."""
    kept = work.run.path / rounds.FOLDER / f"{number:04d}-lessons.txt"
    if kept.is_file():
        return read_bytes(kept).decode("utf-8", "replace")
    try:
        found = told(work.run.path.parent / FOLDER, work.op.name, work.settings.archs, words)
    except StoreError as error:
        work.say(f"no lessons in the questions: {error}")
        return ""
    if found:
        work.run.durable.write(kept, found.encode())
    return found
