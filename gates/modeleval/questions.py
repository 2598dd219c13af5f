"""The items that an exercise asks, the same for the process that answers them and for the judge who marks them."""

import hashlib
from collections.abc import Iterable

import torch

from kgen.gates.modeleval.exercise import CONSTRAINED, LONG, SAMPLING, TASKS, VERIFY, Exercise, Seeds
from kgen.model.nano import tasks
from kgen.model.nano.tasks import Item

JSON_ROOM = 4  # tokens that an answer in JSON may be longer than the expected one: white space is free there
KIND = {LONG: "recall", VERIFY: "copy", CONSTRAINED: "json", SAMPLING: "json"}  # tasks: all
FAR, FAR_SHARE = "recall", 8  # the task, and the share of its items, with prompts of the length `context`


def seed_of(seed: int, what: str) -> int:
    """A seed of its own for each use: 62 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{what}".encode()).digest()[:8]) >> 2


def token_ids(exercise: Exercise, seeds: Seeds, vocab: int, steps: int, device: torch.device) -> torch.Tensor:
    """Given tokens int64 [steps, count, q]: the same on every device."""
    gen = torch.Generator().manual_seed(seed_of(seeds.tokens, exercise.name))
    return torch.randint(0, vocab, (steps, exercise.count, exercise.q), generator=gen).to(device)


def questions(exercise: Exercise, seeds: Seeds) -> list[list[Item]]:
    """Batches of at most `count` items; those of one batch are of one task, one length, and have like prompts."""
    names = list(tasks.TASKS) if exercise.kind == TASKS else [KIND[exercise.kind]]
    total, seed = exercise.items or exercise.count, seed_of(seeds.tokens, exercise.name)
    each = -(-total // len(names))
    found: list[list[Item]] = []
    for name in names:
        far = _far(exercise, each) if name == FAR else 0
        for many, length in ((each - far, _length(exercise, name)), (far, exercise.context)):
            items = tasks.items(name, "heldout", many, seed=seed, length=length)
            items.sort(key=lambda item: len(item.prompt))  # one prefill then reads most of a batch's prompts
            found += [items[i : i + exercise.count] for i in range(0, many, exercise.count)]
    return found


def _far(exercise: Exercise, each: int) -> int:
    """Of `each` items of a task, those of the length `context`: an eighth, in whole batches."""
    if exercise.kind != TASKS or not exercise.context:
        return 0
    return min(each, -(-each // (FAR_SHARE * exercise.count)) * exercise.count)


def _length(exercise: Exercise, name: str) -> int | None:
    if exercise.kind == LONG:
        return exercise.context
    return tasks.TASKS[name].shortest if exercise.shortest else None


def answer_room(items: Iterable[Item]) -> int:
    """Tokens that are kept of each answer."""
    return max(len(item.answer) + (JSON_ROOM if item.task == "json" else 0) for item in items)


def padded(rows: list[list[int]]) -> torch.Tensor:
    """int32 [rows, longest], -1 behind a shorter row."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int32)
