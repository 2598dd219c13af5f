"""A kernel's source as HTML lines with highlighting, and the difference of two sources side by side.

    lines(text) -> list[Markup]                 one a line, classes of pygments
    difference(old, new) -> tuple[DiffRow, ...] changed lines with a few around them; () where both are alike

Sources are data: pygments reads them, nothing runs them.
"""

import difflib
from dataclasses import dataclass

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

CONTEXT = 3  # unchanged lines shown around a change
NO_LINE = Markup("")


def lines(text: str) -> list[Markup]:
    """Highlighted lines of Python; what is no Python is shown all the same."""
    plain = _as_read(text)
    made = highlight(plain, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    found = made.split("\n")
    count = plain.count("\n") + 1
    return [Markup(line) for line in [*found, *[""] * count][:count]]


def _as_read(text: str) -> str:
    """With the ends of lines that Python sees: a lone carriage return ends a comment, too."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


@dataclass(frozen=True)
class DiffRow:
    """`kind`: same, changed, removed, added, or gap (lines left out between two changes). No line: number 0, ""."""

    kind: str
    old: int
    old_line: Markup
    new: int
    new_line: Markup


def difference(old: str, new: str) -> tuple[DiffRow, ...]:
    if old == new:
        return ()
    left, right = (_as_read(text).split("\n") for text in (old, new))
    shown_left, shown_right = lines(old), lines(new)
    rows: list[DiffRow] = []
    for group in difflib.SequenceMatcher(None, left, right, autojunk=False).get_grouped_opcodes(CONTEXT):
        if rows or group[0][1] or group[0][3]:
            rows.append(DiffRow("gap", 0, NO_LINE, 0, NO_LINE))
        for tag, a, b, c, d in group:
            for at in range(max(b - a, d - c)):
                i, j = a + at, c + at
                rows.append(_row(tag, i if i < b else -1, j if j < d else -1, shown_left, shown_right))
    return tuple(rows)


def _row(tag: str, i: int, j: int, left: list[Markup], right: list[Markup]) -> DiffRow:
    kind = "same" if tag == "equal" else "removed" if j < 0 else "added" if i < 0 else "changed"
    old_line, new_line = (left[i] if i >= 0 else NO_LINE), (right[j] if j >= 0 else NO_LINE)
    return DiffRow(kind, i + 1, old_line, j + 1, new_line)


def counted(rows: tuple[DiffRow, ...]) -> tuple[int, int]:
    """Lines removed and added."""
    removed = sum(r.kind in ("removed", "changed") for r in rows)
    return removed, sum(r.kind in ("added", "changed") for r in rows)
