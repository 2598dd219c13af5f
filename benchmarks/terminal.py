"""A session on a terminal: recorded through a real pty, and a picture made of the recording.

    python benchmarks/terminal.py record FILE.cast.xz -- kgen propose --op OP ...     what the command writes, timed
    python benchmarks/terminal.py draw FILE.cast.xz FILE.svg [--at SECONDS]           the screen at that moment

The recording is asciicast 2, as it is or with xz: a head, then [seconds, "o", text] lines. `draw` without --at takes
the moment in the head's `picture`, which `draw --at` writes there. The screen understands what rich writes: colours,
bold, moves of the cursor, erasing; anything else that moves is an error, not a wrong picture. Not covered: input, wide
characters.
"""

import argparse
import fcntl
import json
import lzma
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

COLUMNS, ROWS = 112, 30
CELL_X, CELL_Y, EDGE = 8.4, 18, 14  # of a picture, in pixels
COLOURS = ("#4a4f5a", "#ff6e6e", "#5af78e", "#f4f99d", "#8ab4ff", "#ff92df", "#8be9fd", "#e6e6e6")
PAPER, INK, GREY = "#14161d", "#d6d9e0", "#7a8090"
CONTROL = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b[=>]|\x1b\][^\x07]*\x07")
SHOWN = {"25", "2004", "1004", "7"}  # private modes that change no cell: cursor, paste, focus, wrap


@dataclass(frozen=True)
class Style:
    colour: str = INK
    bold: bool = False
    dim: bool = False


Cell = tuple[str, Style]
BLANK: Cell = (" ", Style())


@dataclass
class Screen:
    """`lines`: of cells, those that scrolled out included."""

    columns: int
    rows: int
    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = Style()

    def write(self, text: str) -> None:
        """Raises ValueError (one line) for a control sequence that it does not know."""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = CONTROL.match(text, at)
                if match is None:
                    raise ValueError(f"the screen does not know {text[at : at + 12]!r}")
                self._control(match)
                at = match.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._go(self.row + 1)
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char >= " ":
            if self.column == self.columns:
                self._go(self.row + 1)
                self.column = 0
            line = self.lines[self.row]
            line += [BLANK] * (self.column + 1 - len(line))
            line[self.column] = (char, self.style)
            self.column += 1

    def _go(self, row: int) -> None:
        self.row = max(0, row)
        self.lines += [[] for _ in range(self.row + 1 - len(self.lines))]

    def _control(self, match: re.Match[str]) -> None:
        private, numbers, kind = match[1], match[2] or "", match[3]
        if kind is None or (private and kind in "hl" and numbers in SHOWN):
            return
        count = int(numbers.split(";")[0] or 0)
        if kind == "m" and not private:
            self._paint([int(n or 0) for n in numbers.split(";")])
        elif kind == "A":
            self._go(max(self.row - max(1, count), len(self.lines) - self.rows))
        elif kind == "K" and count in (0, 2):
            del self.lines[self.row][self.column if count == 0 else 0 :]
        elif kind == "J" and count == 0:
            del self.lines[self.row][self.column :], self.lines[self.row + 1 :]
        else:
            raise ValueError(f"the screen does not know {match[0]!r}")

    def _paint(self, numbers: Sequence[int]) -> None:
        """SGR: colours of the 16, of the 256 only as themselves."""
        left = list(numbers)
        while left:
            n, now = left.pop(0), self.style
            if n == 38 and left[:1] == [5]:
                n, left = _near(left[1]), left[2:]
            elif n == 38 and left[:1] == [2]:
                left = left[4:]
                continue
            if n == 0:
                self.style = Style()
            elif n in (1, 2):
                self.style = Style(now.colour, now.bold or n == 1, now.dim or n == 2)
            elif 30 <= n <= 37 or 90 <= n <= 97:
                self.style = Style(COLOURS[n % 10], now.bold, now.dim)
            elif n == 39:
                self.style = Style(INK, now.bold, now.dim)
            elif n == 22:
                self.style = Style(now.colour)

    def last(self) -> list[list[Cell]]:
        """The lines of the screen, empty ones at its end left out."""
        shown = self.lines[-self.rows :]
        while shown and not any(char != " " for char, _ in shown[-1]):
            shown.pop()
        return shown


def _near(number: int) -> int:
    """One of the eight for a colour of the 256: rich's bars have 197 while they grow, 70 at their end, 237 behind."""
    return {197: 35, 70: 32, 237: 30}.get(number, 37)


def replayed(lines: Sequence[str], at: float | None = None) -> Screen:
    """The screen at a moment, or at that of the head. Raises ValueError, KeyError for what is no recording."""
    head = json.loads(lines[0])
    end = head.get("picture", float("inf")) if at is None else at
    screen = Screen(head["width"], head["height"])
    for when, kind, text in map(json.loads, lines[1:]):
        if when > end:
            break
        if kind == "o":
            screen.write(text)
    return screen


def drawn(lines: Sequence[str]) -> str:
    """The picture of a recording as SVG: text stays text."""
    command, screen = json.loads(lines[0])["command"], replayed(lines)
    prompt: list[Cell] = [("$", Style(GREY)), BLANK, *((c, Style(bold=True)) for c in command), BLANK]
    rows = [prompt[i : i + screen.columns] for i in range(0, len(prompt), screen.columns)] + screen.last()
    width, height = round(screen.columns * CELL_X + 2 * EDGE), len(rows) * CELL_Y + 2 * EDGE
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="14"'
        ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
        f"<title>A terminal: {escape(command)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]
    for number, row in enumerate(rows):
        y = EDGE + number * CELL_Y + 14
        body += [_text(start, y, text, style) for start, text, style in _runs(row) if text.strip()]
    return "\n".join([*body, "</svg>", ""])


def _runs(row: Sequence[Cell]) -> list[tuple[int, str, Style]]:
    """(column, text, style) of cells beside each other that look alike."""
    found: list[tuple[int, str, Style]] = []
    for column, (char, style) in enumerate(row):
        if found and found[-1][2] == style:
            start, text, _ = found[-1]
            found[-1] = (start, text + char, style)
        else:
            found.append((column, char, style))
    return found


def _text(column: int, y: int, text: str, style: Style) -> str:
    kept = text.rstrip()
    column, kept = column + len(kept) - len(kept.lstrip()), kept.lstrip()
    x, long = round(EDGE + column * CELL_X, 1), round(len(kept) * CELL_X, 1)
    bold, dim = ' font-weight="bold"' if style.bold else "", ' opacity="0.7"' if style.dim else ""
    place = f'<text x="{x}" y="{y}" textLength="{long}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
    return f'{place} fill="{style.colour}"{bold}{dim}>{escape(kept)}</text>'


def record(out: Path, command: Sequence[str]) -> int:
    """Runs the command on a terminal of its own; its exit status."""
    started, lines = time.monotonic(), list[str]()
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], list(command))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    rest = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        text = (rest + data).decode("utf-8", errors="surrogateescape")
        cut = len(text.rstrip("".join(map(chr, range(0xDC80, 0xDD00)))))  # a character that is not whole yet
        rest = text[cut:].encode("utf-8", errors="surrogateescape")
        lines.append(json.dumps([round(time.monotonic() - started, 3), "o", text[:cut]]))
    _, status = os.waitpid(child, 0)
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "command": " ".join(command)}
    write(out, [json.dumps(head), *lines])
    return os.waitstatus_to_exitcode(status)


def read(path: Path) -> list[str]:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8").splitlines()


def write(path: Path, lines: Sequence[str]) -> None:
    data = "\n".join([*lines, ""]).encode("utf-8")
    path.write_bytes(lzma.compress(data, preset=9) if path.suffix == ".xz" else data)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="terminal", description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="what", required=True)
    recording = parts.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("command", nargs="+")
    drawing = parts.add_parser("draw")
    drawing.add_argument("cast", type=Path)
    drawing.add_argument("out", type=Path)
    drawing.add_argument("--at", type=float, help="seconds since the start")
    chosen = parser.parse_args(list(arguments))
    if chosen.what == "record":
        return record(chosen.out, chosen.command)
    head, *rest = read(chosen.cast)
    if chosen.at is not None:
        head = json.dumps({**json.loads(head), "picture": chosen.at})
        write(chosen.cast, [head, *rest])
    chosen.out.write_text(drawn([head, *rest]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
