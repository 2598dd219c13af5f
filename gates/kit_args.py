"""What a kit can be asked on a GPU host: its usage text, its arguments, and which of its runs they leave."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.gates.kit_units import GATE_NAMES
from kgen.records import canonical_json, sha256_bytes

USAGE = """\
python kit.pyz [--out FILE] [--raw FILE] [--gates numeric,model,perf] [--ops OP,OP] [--points WORD,WORD]
               [--part I/N] [--together] [--deadline S] [--sign KEY]
python kit.pyz --rank [--out FILE] [--ops OP,OP] [--points WORD,WORD]
python kit.pyz --counters [--out FILE] [--ops OP,OP]

Runs the gates of the kernels inside on this machine's GPU; needs Python, torch with CUDA and cc, no network. A kit of
several runs writes a file of each kind for each run: evidence.RUN.json, raw.RUN.json.xz.
  --out       signed evidence, written after every piece and taken up again (default evidence.json)
  --sign      sign the statement beside the evidence (evidence.intoto.jsonl) with this ssh key, by ssh-keygen
  --raw       raw samples of the timings (default raw.json.xz)
  --gates     which gates, in this order
  --ops       only the runs of these ops
  --points    only problems with one of these words: t8, nano, sm_90a, or a whole problem key
  --part I/N  only every N-th piece, from the I-th: for a GPU that is there for minutes only; ingest all files together
  --together  full-model-eval once, with the kernels of all runs in place, instead of once a run; those that it does
              not pass are judged alone
  --deadline  seconds that one piece may take (default 480)
  --rank      only time and compare all kernels quickly: no evidence
  --counters  only read hardware counters with Nsight Compute (ncu), off the clock (default counters.json): no evidence
  --plan      list the pieces of work and stop
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kit.pyz", usage=USAGE, add_help=False)
    parser.add_argument("--out")
    parser.add_argument("--raw", default="raw.json.xz")
    parser.add_argument("--gates", default=",".join(GATE_NAMES))
    parser.add_argument("--ops", default="")
    parser.add_argument("--points", default="")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--deadline", type=float, default=480.0)
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("--counters", action="store_true")
    parser.add_argument("--sign", default="")
    parser.add_argument("--plan", action="store_true")
    args = parser.parse_args(list(argv))
    args.out_given, args.out = bool(args.out), args.out or ("counters.json" if args.counters else "evidence.json")
    return args


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def part_given(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise ValueError(f"--part {text!r} is not I/N with 1 <= I <= N")
    return int(index), int(count)


def chosen(info: Mapping[str, Any], args: argparse.Namespace) -> list[tuple[dict[str, Any], argparse.Namespace]]:
    """What the kit says of each run that --ops leaves, and the arguments for it: a run has files of its own where the
    kit has several. Raises ValueError for an op that the kit does not have."""
    runs, wanted, digest = info["runs"], words(args.ops), sha256_bytes(canonical_json(info))
    if unknown := [op for op in wanted if op not in {line["op"] for line in runs}]:
        raise ValueError(f"no run of {unknown[0]!r} in this kit; it has {', '.join(line['op'] for line in runs)}")
    found = []
    for line in runs:
        if not wanted or line["op"] in wanted:
            own = argparse.Namespace(**vars(args))
            if len(runs) > 1:
                own.out, own.raw = (of_run(path, line["run"]) for path in (args.out, args.raw))
            found.append(({**line, "kit": digest, "gate_contract": info["gate_contract"]}, own))
    return found


def of_run(path: str, run: str) -> str:
    """A run's own file where a kit has several: out/raw.json.xz -> out/raw.RUN.json.xz."""
    given = Path(path)
    stem, dot, rest = given.name.partition(".")
    return str(given.with_name(f"{stem}.{run}{dot}{rest}"))
