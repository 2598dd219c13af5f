"""Foreign names in our own sentences. Not covered: foreign text, which is quoted (proposers/quoting.py)."""

import re

_NAME = re.compile(r"[^A-Za-z0-9._/=-]+")


def cell(word: str) -> str:
    """A short foreign name (gate, code, problem key) for use outside a block: no spaces, so no sentences."""
    return _NAME.sub("_", word).strip("_")[:64]
