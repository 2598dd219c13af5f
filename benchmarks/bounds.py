"""What bounds the promoted kernels: each is timed beside variants of itself that leave one stage out.

    PYTHONPATH=tests python benchmarks/bounds.py pack bounds.pyz     builds the variants; for a GPU host
    python3 bounds.pyz --out bounds.json                             there: Python 3.12, torch, cc; 150 s
    PYTHONPATH=tests python benchmarks/bounds.py take bounds.json    makes the record of what it wrote
    PYTHONPATH=tests python benchmarks/bounds.py check               says what is wrong with the record

The table of kernels and variants is tests/bounding/table.py; `--points` packs that many points of each row, `--only`
some ops or candidates. The record is benchmarks/bounds.json; `PYTHONPATH=tests python -m kernel_pages` puts it on the
pages. Variants give wrong results on purpose: they are no candidates, and their times are no evidence of a gate.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bounding.record import RECORD, complaints, taken


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "take", "check"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--points", type=int, default=1 << 10)
    parser.add_argument("--only", default="", metavar="WORD,WORD")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args(argv)
    if args.what != "check" and args.file is None:
        parser.error(f"{args.what} needs a file")
    if args.what == "pack":
        from bounding.pack import carry  # builds: not wanted where a record is only read
        from bounding.table import chosen

        rows = chosen([word for word in args.only.split(",") if word], args.points)
        sys.stdout.write(carry(args.file, rows) + "\n")
        return 0
    if args.what == "take":
        args.record.write_text(taken(json.loads(args.file.read_text(encoding="utf-8"))), encoding="utf-8")
    said = complaints(json.loads(args.record.read_text(encoding="utf-8")))
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return 1 if said else 0


if __name__ == "__main__":
    raise SystemExit(main())
