"""Parameters of a sweep of which each run tries some, and `make deep` all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def deep(*values: object) -> Any:
    """A parameter that only `make deep` tries."""
    return pytest.param(*values, marks=pytest.mark.deep)


def listed(names: Iterable[str], always: Collection[str]) -> list[Any]:
    """All names as parameters, those in `always` for each run. Raises ValueError where one of these is no name."""
    names = list(names)
    if unknown := set(always) - set(names):
        raise ValueError(f"nothing is called {', '.join(sorted(unknown))}")
    return [name if name in always else deep(name) for name in names]
