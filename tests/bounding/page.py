"""What a page says of the record: times of the variants, a sentence a point by rule, counters.

    region(op) -> Markdown; without a record of the op, that nothing was measured

The rule: of the variants that leave out one stage, the one that saves most is what bounds the kernel there, if it saves
at least SHARE of the kernel's time; else no single stage does. What is left alone by a variant is named with its time.
"""

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from bounding.record import RECORD, Point, points
from bounding.variants import BASE, EMPTY
from support.kernel_tables import percent, table, us

from kgen.gates.runner.ncu import METRICS

SHARE = 0.05  # of the kernel's time: less is not told from how such times scatter between builds
NOT_MEASURED = (
    "No variant with a stage left out has been timed and no counters are recorded: what follows is reasoned from the"
    " shape and the tables below, and not shown by a measurement."
)
AFTER = "What follows was reasoned from the shape before these times were taken."
SHOWN = (  # of ncu.METRICS
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
)
KERNEL = re.compile(r"kernel_cutlass_(?:(\w+?)_)?candidate(\w+?)_object")


def region(op: str, serves: Collection[str] = (), path: Path = RECORD) -> str:
    """The section's generated part, an empty line before and behind. `serves`: candidates of the kernel set."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"points": []}
    found = points(record, op)
    if not found:
        return f"\n{_wrapped(NOT_MEASURED)}\n"
    link = "[the record](../../benchmarks/bounds.json)"
    parts = [
        _wrapped(f"Measured on one {record['machine']['gpu']} ({link}), µs a call, cold weights, in one CUDA graph.")
    ]
    for candidate in dict.fromkeys(p.candidate for p in found):
        own = [p for p in found if p.candidate == candidate]
        which = "serves" if candidate in serves else "does not serve now"
        parts += [
            f"`{candidate}`, which {which}, as it is and with one thing left out:\n",
            _times(own),
            _sentences(own),
            _counters(own),
        ]
    return "\n" + "\n".join(part for part in [*parts, _wrapped(AFTER)] if part) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _times(own: Sequence[Point]) -> str:
    """A row a variant, a column a count of tokens."""
    names = list(dict.fromkeys(name for p in own for name in p.left))
    heads = ["variant", "what it leaves out", *(_tokens(p) + ":" for p in own)]
    left = {name: text for p in own for name, text in p.left.items()}
    return table(heads, [[name, left[name], *(us(p.us.get(name)) for p in own)] for name in names])


def _tokens(point: Point) -> str:
    return f"{point.tokens} token{'s' if point.tokens > 1 else ''}"


def _sentences(own: Sequence[Point]) -> str:
    return _wrapped(" ".join(sentence(p) for p in own))


def sentence(point: Point) -> str:
    """What bounds the kernel at a point, by the rule above."""
    whole = point.us[BASE]
    said = f"At {_tokens(point)} it takes {us(whole)} µs"
    if EMPTY in point.us:
        said += f", its launches alone {us(point.us[EMPTY])}"
    name, most = next(iter(point.saved.items()), ("", 0.0))
    if most >= SHARE * whole:
        said += f"; most is saved by leaving out {_briefly(point.left[name])}: {us(most)} µs, {percent(most / whole)}."
    else:
        said += f"; leaving out any single stage saves less than {percent(SHARE)} of that."
    rest = [f"“{n}” takes {us(point.us[n])} µs, {percent(point.us[n] / whole)}" for n in point.alone if n in point.us]
    lost = [f"“{n}” was not timed: {why.rstrip('.')}" for n, why in point.failed.items()]
    return " ".join([said, *(f"{text[0].upper()}{text[1:]}." for text in (*rest, *lost))])


def _briefly(left: str) -> str:
    """Without what the table adds on what stays."""
    return re.split("[:;]", left)[0]


def _counters(own: Sequence[Point]) -> str:
    """Counters of the kernels as they are, "" where none were read."""
    columns = [(p, name, values) for p in own for name, values in p.counters.items()]
    if not columns:
        return ""
    heads = ["counter of the kernel as it is", *(f"{kernel_name(name)}, {_tokens(p)}:" for p, name, _ in columns)]
    rows = [[_meaning(m), *(_shown(values.get(m)) for _, _, values in columns)] for m in SHOWN]
    return table(heads, _known(rows))


def _known(rows: Iterable[list[str]]) -> list[list[str]]:
    return [row for row in rows if any(cell != us(None) for cell in row[1:])]


def _meaning(metric: str) -> str:
    unit, means = METRICS[metric]
    return f"{means}, {unit if unit == '%' else 'warps an issue'}"


def _shown(value: float | None) -> str:
    return us(None) if value is None else f"{value:.1f}"


def kernel_name(mangled: str) -> str:
    """Class of the candidate that launches it, and the method where that is no plain `kernel`."""
    if (found := KERNEL.search(mangled)) is None:
        return mangled[:40]
    method, owner = found[1] or "kernel", found[2]
    return owner if method == "kernel" else f"{owner}.{method}"
