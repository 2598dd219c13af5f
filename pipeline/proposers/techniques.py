"""Which technique pages a prompt carries: those that fit the op, best first, within a budget.

The choice depends on the op alone, so that a run's system prompt stays the same from question to question (servers
cache it). Not covered: choosing by diagnosis.
"""

import re
from collections.abc import Mapping

from kgen.contract import Op
from kgen.contract.tensors import Role

FOLDER = "techniques/"
BUDGET = 8_000  # characters, about 2,000 tokens
_TAGS = re.compile(r"^tags: (.*)$", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9_.-]{3,}")


def words_of(op: Op) -> set[str]:
    """Words of the contract's text, and of what its tensors are."""
    said = set(_WORD.findall(f"{op.name.replace('_', ' ')} {op.title} {op.doc}".lower()))
    if any(t.role is Role.WEIGHT for t in op.tensors):
        said |= {"weights", "bandwidth"}
    if any(t.role is Role.WEIGHT and t.dtype == "u8" for t in op.tensors):
        said |= {"mxfp4", "e2m1", "e8m0", "scale", "nibble"}
    return said


def chosen(op: Op, pages: Mapping[str, str]) -> list[str]:
    """The names of the pages that share most tags with the op, in that order; ties by name."""
    wanted, picked, left = words_of(op), [], BUDGET
    scores = {name: len(wanted & _tags(text)) for name, text in pages.items() if name.startswith(FOLDER)}
    for name in sorted(scores, key=lambda n: (-scores[n], n)):
        if scores[name] and len(pages[name]) <= left:
            picked.append(name)
            left -= len(pages[name])
    return picked


def _tags(page: str) -> set[str]:
    found = _TAGS.search(page)
    return set(found[1].split()) if found else set()
