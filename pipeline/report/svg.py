"""Small drawings as SVG for inside an HTML page: elements, two kinds of axes. Colours are classes of the page's CSS.

    d = Drawing(380, 120, "title", "what a reader of it should learn")
    d.add("circle", cx=10, cy=10, r=3, cls="win", tip="1 token: 9.65 µs")
    d.markup("id-of-it") -> Markup

Text is escaped. Not covered: what is drawn (`plots`).
"""

import math
from dataclasses import dataclass, field

from markupsafe import Markup, escape

LEAST_SPAN = 8.0  # of a logarithmic axis, from end to end
NAMES = {"cls": "class", "anchor": "text-anchor"}


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` onto units from `start` to `end`, evenly or by logarithm. Beyond, they stop."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(min(max(value, self.low), self.high)) - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self) -> list[float]:
        """Of a logarithm: powers of ten inside, and their doubles and halves where few would be there."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if last - first <= 3 else (1,)
        found = [step * 10.0**n for n in range(first, last + 1) for step in steps]
        return [value for value in found if self.low <= value <= self.high]


def log_axis(values: list[float], start: float, end: float) -> Axis:
    """Wide enough for all of them, with a little room."""
    low, high = min(values) / 1.25, max(values) * 1.25
    room = max(1.0, math.sqrt(LEAST_SPAN * low / high))
    return Axis(low / room, high * room, start, end, log=True)


def shown(value: float) -> str:
    """A tick's number: 0.01, 1, 100, 1e6."""
    return (
        f"{value:g}"
        if 1e-3 <= abs(value) < 1e6 or value == 0
        else f"{value:.0e}".replace("e-0", "e-").replace("+0", "")
    )


@dataclass
class Drawing:
    """A picture of `width` x `height` units, read out as `title` and `said`."""

    width: int
    height: int
    title: str
    said: str
    parts: list[Markup] = field(default_factory=list)

    def add(self, tag: str, text: str = "", tip: str = "", **values: str | float) -> None:
        """One element; `tip` is shown where a mouse rests on it."""
        given = Markup("").join(
            Markup(' {}="{}"').format(NAMES.get(k, k.replace("_", "-")), v) for k, v in values.items()
        )
        inner = (Markup("<title>{}</title>").format(tip) if tip else Markup("")) + escape(text)
        self.parts.append(Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), given, inner))

    def text(self, x: float, y: float, words: str, anchor: str = "start", cls: str = "tick") -> None:
        self.add("text", words, x=x, y=y, anchor=anchor, cls=cls)

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str = "grid") -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls)

    def mark(self, shape: str, x: float, y: float, cls: str, tip: str = "", r: float = 3.5) -> None:
        """A circle, diamond, square or cross: shapes tell kinds apart without colour."""
        if shape == "circle":
            self.add("circle", cx=x, cy=y, r=r, cls=cls, tip=tip)
        elif shape == "square":
            self.add("rect", x=round(x - r, 1), y=round(y - r, 1), width=2 * r, height=2 * r, cls=cls, tip=tip)
        elif shape == "diamond":
            self.add(
                "path", d=f"M{x} {y - r - 1}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z", cls=cls, tip=tip
            )
        else:
            self.add("path", d=f"M{x - r} {y - r}l{2 * r} {2 * r}M{x + r} {y - r}l{-2 * r} {2 * r}", cls=cls, tip=tip)

    def markup(self, name: str) -> Markup:
        head = Markup(
            '<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{n}-t {n}-d"><title id="{n}-t">{}</title>'
            '<desc id="{n}-d">{}</desc>'
        ).format(self.width, self.height, self.title, self.said, n=name)
        return head + Markup("").join(self.parts) + Markup("</svg>")
