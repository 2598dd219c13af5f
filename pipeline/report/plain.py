"""What a section of a report holds, before it is written as Markdown or HTML: tables of plain text.

A cell is text, a name (`Code`), numbers (`Figure`), or several of them beside each other. Nothing is
escaped here: the writers do that.
"""

from dataclasses import dataclass


class Code(str):
    """A name, hash or command: shown as code."""

    __slots__ = ()


class Figure(str):
    """Numbers that were formatted here: nothing foreign is in it, and it stays on one line."""

    __slots__ = ()


class Mark(str):
    """A gate's status, perhaps with a word to it: shown with its sign or colour."""

    __slots__ = ()


class Strong(str):
    """Words that must not be missed."""

    __slots__ = ()


Pieces = tuple[str, ...]  # of a paragraph, to be set one after the other
Cell = str | tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """`right`: columns of numbers. `limit`: characters of a cell where room is short. Empty heads: names and values."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[int, ...] = ()
    limit: int = 220

    def __bool__(self) -> bool:
        return bool(self.rows)


def pairs(*rows: tuple[str, Cell], limit: int = 220) -> Table:
    """A table of names and values."""
    return Table(("", ""), rows, limit=limit)


def cut(text: object, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def us(value: float) -> str:
    return f"{value:.2f}" if value == value and abs(value) != float("inf") else "–"


def sci(value: object) -> str:
    return f"{value:.2e}" if isinstance(value, int | float) else "–"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"
