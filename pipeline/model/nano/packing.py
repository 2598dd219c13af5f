"""Rows of one length for training and evaluation, drawn and laid out in worker processes; no torch here.

A row holds one item, padded at its end. Only the answer is to be predicted: `positions` are the flat places whose next
token is an answer's, `targets` those tokens, `owners` the rows they belong to.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from kgen.model.nano.draw import Draw
from kgen.model.nano.tasks import TASKS, item
from kgen.model.nano.vocabulary import PAD

ROW_MULTIPLE = 64  # row lengths are multiples of it


@dataclass(frozen=True)
class Job:
    """What to draw: `rows` items of `tasks` (equal shares) that fit `length` tokens, numbered from `start`.

    `vary` draws half of the items shorter, down to half the length (in the shortest rows down to what the task allows);
    else every item may use all of it.
    """

    tasks: tuple[str, ...]
    split: str
    seed: int
    start: int
    rows: int
    length: int
    vary: bool = True

    @property
    def row_length(self) -> int:
        return -(-self.length // ROW_MULTIPLE) * ROW_MULTIPLE


@dataclass(frozen=True)
class Packed:
    """Native-endian arrays as bytes, cheap to send: ids and targets int16, positions and owners int32."""

    rows: int
    length: int
    ids: bytes
    positions: bytes
    targets: bytes
    owners: bytes


def tasks_for(length: int) -> tuple[str, ...]:
    """Tasks whose items fill more than half of a row of this length."""
    return tuple(name for name, task in TASKS.items() if task.shortest <= length < 2 * task.useful)


def pack(job: Job) -> Packed:
    """Draw and lay out one batch; the same job always gives the same bytes."""
    draw = Draw(f"batch/{job.seed}/{job.start}/{job.length}")
    width = job.row_length
    ids = array("h", [PAD]) * (job.rows * width)
    positions, targets, owners = array("i"), array("h"), array("i")
    for row in range(job.rows):
        task = draw.one(job.tasks)
        length = job.length
        if job.vary and draw.random() < 0.5:
            least = 0 if job.length <= ROW_MULTIPLE else job.length // 2
            length = draw.between(max(TASKS[task].shortest, least), job.length)
        one = item(task, job.split, job.start + row, seed=job.seed, length=length)
        # the last token of the answer is never an input
        inputs = array("h", one.prompt + one.answer[:-1])
        first = row * width
        ids[first : first + len(inputs)] = inputs
        positions.extend(range(first + len(one.prompt) - 1, first + len(inputs)))
        targets.extend(one.answer)
        owners.extend([row] * len(one.answer))
    return Packed(job.rows, width, *(part.tobytes() for part in (ids, positions, targets, owners)))


# Up to this share of the training time, the row lengths and their weights (each step has the same number of tokens).
# Short rows come first and never go away; the longest are rare and late, they teach recall over a long context.
Stage = tuple[float, Mapping[int, float]]
STAGES: tuple[Stage, ...] = (
    (0.10, {64: 3, 128: 1}),
    (0.25, {64: 1, 128: 3, 256: 1}),
    (0.45, {64: 1, 128: 2, 256: 3, 512: 1}),
    (0.70, {64: 1, 128: 2, 256: 3, 512: 2, 1024: 1, 2048: 0.5}),
    (1.00, {64: 1, 128: 2, 256: 3, 512: 2, 1024: 1, 2048: 1.5, 16384: 0.25}),
)


@dataclass(frozen=True)
class Diet:
    """What the training jobs of a run have in common: `tokens` per step, the `longest` row, the tasks."""

    seed: int
    tokens: int
    longest: int
    tasks: tuple[str, ...] = tuple(TASKS)

    def __post_init__(self) -> None:
        if unknown := set(self.tasks) - TASKS.keys():
            raise ValueError(f"no task {min(unknown)!r}: choose some of {', '.join(TASKS)}")
        if not self._usable(0.0):
            raise ValueError(
                f"no row of {min(self.longest, self.tokens)} tokens holds {', '.join(self.tasks)}: allow 64"
            )

    def _usable(self, progress: float) -> dict[int, float]:
        weights = next(lengths for until, lengths in STAGES if progress <= until or until == STAGES[-1][0])
        return {n: w for n, w in weights.items() if n <= min(self.longest, self.tokens) and self.tasks_at(n)}

    def tasks_at(self, length: int) -> tuple[str, ...]:
        return tuple(task for task in tasks_for(length) if task in self.tasks)

    def job(self, number: int, progress: float) -> Job:
        """The training job with this number, for the share of the training that is done."""
        usable = self._usable(progress)
        at = Draw(f"length/{self.seed}/{number}").random() * sum(usable.values())
        until = zip(usable, accumulate(usable.values()), strict=True)
        length = next((length for length, total in until if at < total), max(usable))
        rows = self.tokens // length
        return Job(self.tasks_at(length), "train", self.seed, number * self.tokens, rows, length)


@dataclass(frozen=True)
class Exam:
    """Held-out items of one task at one length."""

    task: str
    length: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.task}@{self.length}"

    def jobs(self, tokens: int, seed: int) -> list[Job]:
        """Batches of at most `tokens` tokens (one row at least)."""
        width = Job((), "heldout", seed, 0, 0, self.length).row_length
        step = max(1, tokens // width)
        return [
            Job((self.task,), "heldout", seed, start, min(step, self.count - start), self.length, vary=False)
            for start in range(0, self.count, step)
        ]


# The short ones show early whether a task is being learnt at all.
EXAMS = (
    *(Exam("recall", length, count) for length, count in ((40, 256), (128, 256), (512, 256), (2048, 128), (16384, 16))),
    *(Exam("copy", length, 256) for length in (16, 64, 256, 512)),
    *(Exam("modular", length, 256) for length in (24, 64, 192)),
    *(Exam("brackets", length, 256) for length in (24, 64, 112)),
    *(Exam("json", length, 256) for length in (64, 192)),
)
