"""One replay of a layer as a picture: a lane for each stream, a bar for each kernel, drawn from the record alone.

svg(measured) -> str            "" where no launches were seen (on a CPU)
write(record, page) -> names    one file a point beside the page
"""

import re
from pathlib import Path
from xml.sax.saxutils import escape

from kgen.gates.layer.record import Kernel, LayerRecord, Measured

WIDTH, LEFT, RIGHT = 1160, 70, 20
TOP, LANE, BAR, LABEL = 46, 34, 20, 13  # heights in px
WIDE = 42  # px of a bar that has room for its number
LETTER = 6.2  # px of one character of a label
COLOURS = ("#1f6fb2", "#b3541e", "#2f7d4f", "#7a4fa3")
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # µs between marks
MARKS = 12
STYLE = (
    "text{font:11px sans-serif;fill:#222}.h{font-size:13px;font-weight:bold}.m{stroke:#bbb}.n{fill:#fff}"
    "@media(prefers-color-scheme:dark){.bg{fill:#161616}text{fill:#ddd}.m{stroke:#444}}"
)


def svg(found: Measured) -> str:
    """Every bar has a title with the kernel's whole name; labels stand in a list below, by number."""
    if not found.timeline:
        return ""
    end = max(k.start + k.us for k in found.timeline)
    scale = (WIDTH - LEFT - RIGHT) / max(end, 1e-9)
    streams = list(dict.fromkeys(k.stream for k in found.timeline))
    below = TOP + LANE * len(streams) + 24
    height = below + LABEL * len(found.timeline) + 10
    launches = len(found.timeline)
    title = f"{found.job.point.key}: one replay of the chain, {launches} launches in {end:.1f} µs"
    body = [*_marks(end, scale, TOP + LANE * len(streams))]
    for lane, stream in enumerate(streams):
        y = TOP + LANE * lane
        body.append(f'<text x="8" y="{y + 15}">stream {stream}</text>')
        body += [_bar(n, k, y, scale, lane) for n, k in enumerate(found.timeline, 1) if k.stream == stream]
    for n, k in enumerate(found.timeline, 1):
        text = escape(f"{n:2}  {k.start:8.1f}  {k.us:7.2f} µs  {k.name}")
        body.append(f'<text x="{LEFT}" y="{below + LABEL * n}" xml:space="preserve">{text}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect class="bg" width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="h" x="8" y="18">{title}</text>', *body, "</svg>", "",
    ])  # fmt: skip


def _bar(number: int, k: Kernel, y: float, scale: float, lane: int) -> str:
    x, width = LEFT + k.start * scale, max(1.0, k.us * scale)
    label = f"{number}: {k.us:.1f}"
    shown = label if width > WIDE else str(number) if width > LETTER * len(str(number)) + 2 else ""
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
    name = escape(f"{number}: {k.name}, {k.us:.2f} µs from {k.start:.1f}")
    bar = f'<rect {place} rx="2" fill="{COLOURS[lane % len(COLOURS)]}"><title>{name}</title></rect>'
    return bar + (f'<text class="n" x="{x + 3:.1f}" y="{y + 14}">{shown}</text>' if shown else "")


def _marks(end: float, scale: float, bottom: float) -> list[str]:
    step = next((s for s in STEPS if end / s <= MARKS), STEPS[-1])
    found = []
    for count in range(int(end / step) + 1):
        x = LEFT + count * step * scale
        found.append(f'<line class="m" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        found.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle">{count * step}</text>')
    return found


def name(found: Measured, page: Path) -> str:
    """Of a point's picture, beside the page."""
    return f"{page.stem}-{re.sub('[^a-z0-9]+', '-', found.job.point.key)}.svg"


def write(record: LayerRecord, page: Path) -> dict[str, str]:
    """Point -> name of its picture, written beside `page`."""
    written = {}
    for found in record.points:
        if picture := svg(found):
            page.with_name(name(found, page)).write_text(picture, encoding="utf-8")
            written[found.job.point.key] = name(found, page)
    return written
