"""The table of supported instructions: every (opcode, modifiers) with its semantics, and its compact form for docs."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from kgen.gates.ptx.arith import approximate, bits, carry, compare, convert, floats, integer, packed, signs
from kgen.gates.ptx.arith.record import Pure

Key = tuple[str, tuple[str, ...]]
MODULES = (integer, carry, bits, compare, convert, packed, floats, signs, approximate)


@dataclass(frozen=True)
class Supported:
    """One line of the table for docs: `.{a,b}` one of these, `[.a]` may be left out."""

    opcode: str
    modifiers: str
    forms: int
    operands: int
    approximate: float | None
    error: str


@cache
def table() -> dict[Key, Pure]:
    """Semantics by opcode and modifiers in the order of the PTX grammar."""
    found: dict[Key, Pure] = {}
    for module in MODULES:
        for opcode, slots, pure in module.entries():
            key = opcode, tuple(slot for slot in slots if slot)
            if key in found:
                raise ValueError(f"two definitions of {'.'.join((opcode, *key[1]))}")
            found[key] = pure
    return found


@cache
def triples() -> dict[Key, Pure]:
    """Three-operand forms of instructions that are in `table` with two."""
    return {(opcode, tuple(slot for slot in slots if slot)): pure for opcode, slots, pure in signs.threes()}


def lookup(opcode: str, modifiers: tuple[str, ...], operands: int | None = None) -> Pure | None:
    """Semantics of an instruction; None where it is not in the table.

    `operands`: how many sources the text has, where that matters (`min` and `max` take three on newer targets).
    """
    key = opcode, modifiers
    pure = table().get(key) or triples().get(key)
    if pure is None or operands is None or operands == len(pure.operands):
        return pure
    return triples().get(key) if operands == 3 else None


def _merged(rows: Iterable[tuple[frozenset[str], ...]]) -> list[tuple[frozenset[str], ...]]:
    """Products of choices that cover exactly the given rows, by joining rows that differ in one place."""
    current = list(dict.fromkeys(rows))
    for place in reversed(range(len(current[0]))):
        groups: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        for row in current:
            rest = (*row[:place], frozenset(), *row[place + 1 :])
            groups[rest] = groups.get(rest, frozenset()) | row[place]
        current = [(*rest[:place], choice, *rest[place + 1 :]) for rest, choice in groups.items()]
    return current


def _shown(choice: frozenset[str]) -> str:
    named = sorted(choice - {""})
    if not named:
        return ""
    text = "." + (named[0] if len(named) == 1 else "{" + ",".join(named) + "}")
    return f"[{text}]" if "" in choice else text


def supported() -> list[Supported]:
    """The table in compact form, sorted by opcode."""
    groups: dict[tuple[str, int, int, float | None, str], list[tuple[frozenset[str], ...]]] = {}
    rows = [entry for module in MODULES for entry in module.entries()]
    for opcode, slots, pure in (*rows, *signs.threes()):
        group = opcode, len(slots), len(pure.operands), pure.approximate, pure.error
        groups.setdefault(group, []).append(tuple(frozenset((slot,)) for slot in slots))
    lines = []
    for (opcode, _, count, bound, error), members in groups.items():
        for row in _merged(members):
            forms = 1
            for choice in row:
                forms *= len(choice)
            lines.append(Supported(opcode, "".join(_shown(c) for c in row), forms, count, bound, error))
    return sorted(lines, key=lambda line: (line.opcode, line.modifiers, line.operands))
