"""What may be left out of a kernel: replacements in its source, each of a text that stands there exactly so often.

    left_out(source, Variant(...)) -> the source of the variant      raises ValueError where a text is not as it was
    hollow(source)                 -> the same launches, grids and shared memory, and kernels that return at once

A variant gives wrong results on purpose and is only timed: it is never a candidate. What a kernel loads must stay
loaded, so results that nobody uses any more go into a word that is stored where `NEVER` holds, which no launch reaches
and no compiler knows. Not here: which kernels have which variants (table.py).
"""

import ast
from dataclasses import dataclass

from kgen.gates.parsing import parse

NEVER = "cute.arch.block_idx()[0] == 1073741824"  # grids have fewer CTAs; the compiler knows nothing of the grid
BASE, EMPTY = "as it is", "empty"
SAME, FEWER = "same", "fewer"


@dataclass(frozen=True)
class Edit:
    """`old`, which stands in the source `times` times, becomes `new`."""

    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Variant:
    """`left`: what is left out, in words. `loads`: whether all wide loads of global memory stay (SAME) or FEWER do.

    `least`: tokens from which on the variant differs from the kernel. `alone`: it leaves out all but one part, so what
    it saves is no stage's cost.
    """

    name: str
    left: str
    edits: tuple[Edit, ...]
    loads: str = SAME
    least: int = 1
    alone: bool = False


def left_out(source: str, variant: Variant) -> str:
    """The variant's source. Raises ValueError for a text that is not there as often as its edit says."""
    if variant.name == EMPTY:
        return hollow(source)
    for edit in variant.edits:
        if (found := source.count(edit.old)) != edit.times:
            raise ValueError(f"{variant.name}: {edit.old.strip()[:60]!r} stands there {found} times, not {edit.times}")
        source = source.replace(edit.old, edit.new)
    return source


def hollow(source: str) -> str:
    """Each kernel waits for the one before it and returns; shared memory is that of its body, registers about so."""
    lines = source.split("\n")
    found = [node for node in ast.walk(parse(source)) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
    for node in sorted(found, key=lambda n: -n.lineno):
        head = lines[node.lineno - 1 : node.body[0].lineno - 1]
        names = ", ".join(a.arg for a in node.args.args[1:])
        margin = " " * node.col_offset
        shell = [
            f"{margin}@cute.kernel",
            *head,
            f"{margin}    cute.arch.griddepcontrol_launch_dependents()",
            f"{margin}    cute.arch.griddepcontrol_wait()",
            f"{margin}    if {NEVER}:",
            f"{margin}        self.whole_{node.name}({names})",
            "",
        ]
        decorator = node.decorator_list[0].lineno - 1
        assert node.end_lineno is not None
        lines[node.end_lineno : node.end_lineno] = ["", *shell[:-1]]
        lines[decorator] = f"{margin}@cute.jit"
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(f"def {node.name}(", f"def whole_{node.name}(")
    return "\n".join(lines)


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr == "kernel" for d in node.decorator_list)


def nothing_of(text: str) -> Edit:
    """Lines that go away."""
    return Edit(text, "")


def guarded(line: str, margin: int = 8) -> Edit:
    """A statement of one line that no launch reaches."""
    pad = " " * margin
    return Edit(f"{pad}{line}\n", f"{pad}if {NEVER}:\n{pad}    {line}\n")


HOLLOW = Variant(EMPTY, "everything: the same launches, which return at once", (), FEWER, alone=True)
