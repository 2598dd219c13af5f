"""The measured table of docs/ranks.md, from its committed record."""

import json
import lzma

from support.checkout import ROOT
from support.kernel_tables import table

from kgen.gates.ranks.record import RanksRecord
from kgen.records import from_json

RECORD = ROOT / "benchmarks" / "ranks_h200.json.xz"
SIDES = {"candidate": "kernel", "pdl": "kernel, PDL", "nccl": "NCCL", "one_shot": "one-shot", "two_shot": "two-shot"}


def record() -> RanksRecord:
    return from_json(RanksRecord, json.loads(lzma.decompress(RECORD.read_bytes())))


def region(*_: object) -> str:
    found = record()
    heads = ["tokens", *SIDES.values(), "kernel / best of torch's", "after 10 µs: kernel", "best of torch's"]
    late = {p.tokens: p for p in found.points if p.column == "skew 10"}
    rows = []
    for point in (p for p in found.points if p.column == "graph"):
        other = late[point.tokens]
        ratio = f"{point.ratio:.2f} ({point.ratio_low:.3f} to {point.ratio_high:.3f}) of {SIDES[point.best]}"
        last = other.late_us["candidate"], min(other.late_us[s] for s in ("nccl", "one_shot", "two_shot"))
        cells = [str(point.tokens), *(f"{point.us[side]:.2f}" for side in SIDES), ratio, *(f"{us:.2f}" for us in last)]
        rows.append(cells)
    return "\n" + table([f"{head}:" for head in heads], rows) + "\n"
