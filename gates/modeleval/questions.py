"""The items that an exercise asks, the same for the process that answers them and for the judge who marks them."""

import hashlib

import torch

from kgen.gates.modeleval.exercise import CONSTRAINED, LONG, SAMPLING, TASKS, VERIFY, Exercise, Seeds
from kgen.model.nano import tasks
from kgen.model.nano.tasks import Item

ROOM = 8  # tokens that an answer may be longer than the expected one
KIND = {LONG: "recall", VERIFY: "copy", CONSTRAINED: "json", SAMPLING: "json"}  # tasks: all


def seed_of(seed: int, what: str) -> int:
    """A seed of its own for each use: 62 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{what}".encode()).digest()[:8]) >> 2


def token_ids(exercise: Exercise, seeds: Seeds, vocab: int, steps: int, device: torch.device) -> torch.Tensor:
    """Given tokens int64 [steps, count, q]: the same on every device."""
    gen = torch.Generator().manual_seed(seed_of(seeds.tokens, exercise.name))
    return torch.randint(0, vocab, (steps, exercise.count, exercise.q), generator=gen).to(device)


def questions(exercise: Exercise, seeds: Seeds) -> list[list[Item]]:
    """Batches of at most `count` items; the items of one batch are of one task."""
    names = list(tasks.TASKS) if exercise.kind == TASKS else [KIND[exercise.kind]]
    total = exercise.items or exercise.count
    seed = seed_of(seeds.tokens, exercise.name)
    found: list[list[Item]] = []
    for name in names:
        length = _length(exercise, name)
        items = tasks.items(name, "heldout", -(-total // len(names)), seed=seed, length=length)
        found += [items[i : i + exercise.count] for i in range(0, len(items), exercise.count)]
    return found


def _length(exercise: Exercise, name: str) -> int | None:
    if exercise.kind == LONG:
        return exercise.context
    return tasks.TASKS[name].shortest if exercise.shortest else None


def answer_room(batches: list[list[Item]]) -> int:
    """Tokens that are kept of each answer."""
    return max(len(item.answer) for batch in batches for item in batch) + ROOM


def padded(rows: list[list[int]], width: int) -> torch.Tensor:
    """int32 [rows, width], -1 behind a shorter row."""
    return torch.tensor([[*row[:width], *[-1] * (width - len(row))] for row in rows], dtype=torch.int32)
