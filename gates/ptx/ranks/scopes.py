"""A kernel's text as the interpreter of several ranks reads it: scopes, and what such a run has no room for.

A rank takes the place of a cluster: what the text says of device scope (`.gpu`) holds within the rank, what it says of
system scope (`.sys`) holds among all. So a release of device scope tells a peer nothing, and data behind it are a race.
"""

from dataclasses import replace

from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.syntax import Address, Entry, Instruction, Sym

ORDERED = ("ld", "st", "atom", "red", "fence", "membar")
NARROWER = {"gpu": "cluster", "gl": "cluster", "cluster": "cta"}
SCOPES = ("cta", "cluster", "gpu", "gl", "sys")
NO_ROOM = ("mapa", "getctarank", "mbarrier", "wgmma", "griddepcontrol")


def for_ranks(entry: Entry) -> Entry:
    """Raises UnsupportedError for an instruction whose meaning among ranks is not modelled."""
    for i in entry.instructions:
        _refuse(i)
    return replace(entry, instructions=tuple(_narrowed(i) for i in entry.instructions))


def _refuse(i: Instruction) -> None:
    if i.opcode in NO_ROOM or i.opcode.startswith("multimem") or (i.opcode == "barrier" and "cluster" in i.modifiers):
        raise UnsupportedError(i, "not modelled for several ranks")
    if i.opcode == "cp" and "bulk" in i.modifiers:
        raise UnsupportedError(i, "not modelled for several ranks")
    loads_parameter = i.opcode == "ld" and bool(i.modifiers) and i.modifiers[0].startswith("param")
    source = i.operands[1] if len(i.operands) > 1 else None
    if loads_parameter and not (isinstance(source, Address) and isinstance(source.base, Sym)):
        raise UnsupportedError(i, "a parameter that is found at run time")


def _narrowed(i: Instruction) -> Instruction:
    if i.opcode not in ORDERED:
        return i
    modifiers = tuple(NARROWER.get(m, m) for m in i.modifiers)
    if i.opcode in ("atom", "red") and not any(m in SCOPES for m in i.modifiers):
        modifiers = ("cluster", *modifiers)  # device scope, where none is written
    return replace(i, modifiers=modifiers)
