"""The measured table of docs/ranks.md from its committed record: `PYTHONPATH=tests python -m ranks_page`."""

import json
import lzma
from pathlib import Path

from kgen.gates.ranks.record import RanksRecord
from kgen.records import from_json

ROOT = Path(__file__).parents[1]
RECORD, PAGE = "benchmarks/ranks_h200.json.xz", "docs/ranks.md"
BEGIN, END = "<!-- generated: ranks -->\n", "<!-- end -->\n"
SIDES = {"candidate": "kernel", "pdl": "kernel, PDL", "nccl": "NCCL", "one_shot": "one-shot", "two_shot": "two-shot"}


def record() -> RanksRecord:
    return from_json(RanksRecord, json.loads(lzma.decompress((ROOT / RECORD).read_bytes())))


def table(found: RanksRecord) -> str:
    heads = ["tokens", *SIDES.values(), "kernel / best of torch's", "after 10 µs: kernel", "best of torch's"]
    late = {p.tokens: p for p in found.points if p.column == "skew 10"}
    rows = []
    for point in (p for p in found.points if p.column == "graph"):
        other = late[point.tokens]
        ratio = f"{point.ratio:.2f} ({point.ratio_low:.3f} to {point.ratio_high:.3f}) of {SIDES[point.best]}"
        last = other.late_us["candidate"], min(other.late_us[s] for s in ("nccl", "one_shot", "two_shot"))
        cells = [str(point.tokens), *(f"{point.us[side]:.2f}" for side in SIDES), ratio, *(f"{us:.2f}" for us in last)]
        rows.append(cells)
    lines = [heads, ["---:"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(record())}\n{END}{after}"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(written((ROOT / PAGE).read_text(encoding="utf-8")), encoding="utf-8")
