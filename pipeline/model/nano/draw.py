"""Reproducible draws: the same numbers for the same key on every machine and Python version.

Only `random.Random.random()` is used, whose sequence Python promises to keep for a given seed.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices that a key (any text) determines."""

    def __init__(self, key: str) -> None:
        self.random = random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")).random

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def between(self, low: int, high: int) -> int:
        """low..high, both included."""
        return low + self.below(high - low + 1)

    def one(self, pool: Sequence[T]) -> T:
        return pool[int(self.random() * len(pool))]

    def many(self, pool: Sequence[T], count: int) -> list[T]:
        """With repeats."""
        rnd, size = self.random, len(pool)
        return [pool[int(rnd() * size)] for _ in range(count)]

    def distinct(self, pool: Sequence[T], count: int) -> list[T]:
        """Without repeats, in random order."""
        left = list(pool)
        for i in range(count):
            j = i + self.below(len(left) - i)
            left[i], left[j] = left[j], left[i]
        return left[:count]
