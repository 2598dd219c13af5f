"""Known points of the search families, built and run in the PTX interpreter: what gates say of them, without a GPU.

    python benchmarks/families.py --op kda_core [--dims nano] [--tokens 1 8] [--axis q=4] [--known 0] [--record FILE]

One line a point of the matrix: the verdict of unit-numeric over all value families, registers and stack of its kernels,
16-byte loads, launches. `--record` adds the lines to a file, in place of older ones of the same point, with the source.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kgen.contract import Op
from kgen.gates import numeric
from kgen.gates.artefacts import Artefact
from kgen.gates.compile import CompileGate
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant, render
from kgen.records import Candidate, Origin

COMMAND = "python benchmarks/families.py --op OP --tokens N --axis NAME=VALUE --record benchmarks/families.json"


def line(op: Op, variant: Variant, candidate: Candidate, artefact: Artefact, folder: Path) -> dict[str, Any]:
    started = time.monotonic()
    result = numeric.interpret(op, [artefact], cache=folder / "linked")
    made = artefact.record
    return {
        "point": made.problem.key,
        "candidate": candidate.id[:12],
        "values": dict(variant.values),
        "code": result.code,
        "message": "" if result.passed else result.message,
        "registers": [k.registers for k in made.kernels],
        "stack_bytes": [k.stack_bytes for k in made.kernels],
        "loads_16b": made.ptx.get("global_loads_16b", 0),
        "launches": [[*x.grid, x.block[0], x.cluster[0], x.dynamic_smem] for x in made.launches],
        "seconds": round(time.monotonic() - started, 1),
    }


def keep(file: Path, found: dict[str, Any]) -> None:
    """Lines of a record are sorted by point and candidate."""
    old = json.loads(file.read_text())["lines"] if file.exists() else []
    mine = (found["point"], found["candidate"])
    lines = sorted([*(x for x in old if (x["point"], x["candidate"]) != mine), found], key=_order)
    body = ",\n".join(f"  {json.dumps(x)}" for x in lines)
    file.write_text(f'{{\n"command": "{COMMAND}",\n"lines": [\n{body}\n]\n}}\n')


def _order(found: dict[str, Any]) -> tuple[str, ...]:
    return (*(part.zfill(8) for part in found["point"].replace("/t", "/").split("/")), found["candidate"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", required=True, choices=sorted(FAMILIES))
    parser.add_argument("--dims", nargs="+", default=["nano"])
    parser.add_argument("--tokens", nargs="+", type=int)
    parser.add_argument("--axis", action="append", default=[], help="NAME=VALUE")
    parser.add_argument("--known", nargs="+", type=int, help="which known points, from 0 on; all")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    op, axes = REGISTRY.get(args.op), dict(a.split("=", 1) for a in args.axis)
    known = FAMILIES[op.name].known
    problems = [op.problem(d, t, "sm_90a", axes) for d in args.dims for t in args.tokens or op.pack.quick_bins]
    with tempfile.TemporaryDirectory() as folder:
        for variant in [known[i] for i in args.known or range(len(known))]:
            candidate = Candidate(op.name, render(variant), Origin("search"))
            with CompileGate(op, Path(folder)) as gate:
                report = gate.run(candidate, problems)
            if not report.result.passed:
                raise SystemExit(report.result.message)
            for artefact in report.artefacts:
                found = line(op, variant, candidate, artefact, Path(folder))
                sys.stdout.write(json.dumps(found) + "\n")
                if args.record:
                    keep(args.record, found)


if __name__ == "__main__":
    main()
