"""`python -m kgen.gates.ranks --job FOLDER --out FILE`: a packed job on the GPUs of this host. Also a pack's entry.

FOLDER holds job.json (a list of kgen.ranked-build records) and objects/SHA256.o. The record is written to FILE, and a
table to stdout. Exit status: 0 right, 1 the candidate failed, 2 usage, 3 the host lacks something, 4 not proven.
"""

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgen.contract.ranks import ranks_of
from kgen.gates.environment import device_arch
from kgen.gates.ranks.job import Carried
from kgen.gates.ranks.plan import Request, run
from kgen.gates.ranks.record import RanksRecord
from kgen.records import RecordError, Status, from_json, to_json
from kgen.store.durable import DURABLE

PASSED, FAILED, BAD_USAGE, MISSING, RETRY = 0, 1, 2, 3, 4
EXIT = {Status.PASS: PASSED, Status.FAIL: FAILED}
JOB = "job.json"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kgen.gates.ranks", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--job", default="", help="the folder of a packed job (a pack knows its own)")
    made.add_argument("--out", default="ranks.json", help="where the record goes")
    made.add_argument("--transport", default="", choices=["", "symm", "ipc"], help="how memory is shared")
    made.add_argument("--seconds", type=float, default=110.0, help="for everything")
    made.add_argument("--seed", type=int, default=-1, help="of all inputs (default: drawn)")
    made.add_argument("--parts", default=",".join(Request.parts), help="which parts, in this order")
    made.add_argument("--tokens", default="", help="only these token bins, e.g. 1,64")
    made.add_argument("--repetitions", type=int, default=Request.repetitions, help="samples of a timing")
    return made


def lacking(ranks: int, archs: Sequence[str]) -> str:
    """What this host lacks to run so many ranks, "" when nothing."""
    import torch

    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if have < ranks:
        return f"needs {ranks} GPUs of one host, here are {have}"
    if (here := device_arch()) not in archs:
        return f"built for {', '.join(archs)}, the GPU here is {here}"
    return ""


def main(argv: Sequence[str], root: str = "", info: Any = None) -> int:
    """`root`, `info`: given by a pack's boot, which calls this too."""
    args = parser().parse_args(argv)
    folder = Path(root or args.job)
    try:
        carried = [from_json(Carried, value) for value in json.loads((folder / JOB).read_bytes())]
    except (OSError, ValueError, RecordError) as error:
        return complain(f"no job in {folder}: {error}", BAD_USAGE)
    wanted = {int(t) for t in args.tokens.split(",") if t}
    carried = [c for c in carried if not wanted or c.record.problem.tokens in wanted]
    if not carried:
        return complain(f"no kernel for {args.tokens} tokens in {folder}", BAD_USAGE)
    archs = sorted({c.record.problem.arch for c in carried})
    if why := lacking(ranks_of(carried[0].record.problem), archs):
        return complain(why, MISSING)
    carried = [c for c in carried if c.record.problem.arch == device_arch()]
    asked = Request(
        transport=args.transport,
        seed=args.seed if args.seed >= 0 else secrets.randbelow(1 << 31),
        seconds=args.seconds,
        parts=tuple(p for p in args.parts.split(",") if p),
        repetitions=args.repetitions,
    )
    out = Path(args.out)
    record = run(carried, folder, asked, say, lambda so_far: write(out, so_far))
    write(out, record)
    for line in table(record):
        say(line)
    return EXIT.get(record.verdict, RETRY)


def write(out: Path, record: RanksRecord) -> None:
    """Whole or not at all. Raises StoreError."""
    DURABLE.write(out, json.dumps(to_json(record)).encode() + b"\n")


def table(record: RanksRecord) -> list[str]:
    """What a reader wants to see at once."""
    lines = [f"{record.op} {record.candidate[:12]} on {record.ranks} ranks: {record.verdict}: {record.message}"]
    lines += [f"  {p.name:7} {p.transport:5} {p.status:6} {p.code:16} {p.seconds:6.1f} s" for p in record.parts]
    judged = len(record.rows)
    lines.append(f"  {judged} rows judged, {sum(bool(row.complaint) for row in record.rows)} with a complaint")
    lines += [f"    {row.problem} {row.what}: {row.complaint}" for row in record.rows if row.complaint][:12]
    for point in record.points:
        times = "  ".join(f"{side} {us:.2f} ({point.late_us[side]:.2f})" for side, us in point.us.items())
        ratio = f"{point.ratio:.3f} ({point.ratio_low:.3f} to {point.ratio_high:.3f}) of {point.best}"
        lines.append(f"  t{point.tokens:<3} {point.column:8} us: {times}  {ratio if point.best else ''}")
    return lines


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str, code: int) -> int:
    sys.stderr.write(f"kgen ranks: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
