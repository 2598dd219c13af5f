"""How far the promoted sources come for an architecture that no GPU here has: built, audited and interpreted.

    PYTHONPATH=tests python benchmarks/staged.py [--arch sm_103a] [--only WORD,WORD] [--record FILE]

Every source that serves a point is built again, unchanged, for the other architecture: at all token bins of every dims
that it can be built for, with the axes that it serves. A source is *staged* where the compile gate passes at all of
these and unit-numeric passes in the PTX interpreter at the small dims, on what was built for that architecture. Nothing
runs on a GPU and nothing is said about speed. One row a source, written as soon as it is there; a row whose source, op
contract and compiler are what they were is kept. `PYTHONPATH=tests python -m kernel_pages` makes the page's table.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from support.committed import SET, promoted, serving
from support.staged import RECORD, SMALL_BINS, read, write

from kgen.contract import Op
from kgen.gates.artefacts import Artefact
from kgen.gates.compile import BuildGate, compiler
from kgen.ops import REGISTRY
from kgen.pool.local import LocalExecutor
from kgen.records import Candidate, Origin, Problem, Promotion, Status, to_json
from kgen.store.kernelset import KernelSet, parse_problem

SECONDS = 600.0  # for one source in the interpreter


def problems(op: Op, promotion: Promotion, dims: str, arch: str) -> Iterator[Problem]:
    """Points of these dims, with the axes that the source serves."""
    axes: list[Mapping[str, str]] = []
    for key in promotion.objects:
        if (found := parse_problem(key).axes) not in axes:
            axes.append(found)
    for values in axes:
        for tokens in SMALL_BINS if dims == op.pack.small else op.pack.bins:
            try:
                yield op.problem(dims, tokens, arch, values)
            except ValueError:  # a point that the op does not have
                continue


def facts(artefacts: Sequence[Artefact]) -> dict[str, int]:
    """The most of each over all kernels."""
    kernels = [kernel for a in artefacts for kernel in a.record.kernels]
    launches = [launch for a in artefacts for launch in a.record.launches]
    return {
        "points": len(artefacts),
        "registers": max(k.registers for k in kernels),
        "stack_bytes": max(k.stack_bytes for k in kernels),
        "smem_bytes": max(launch.dynamic_smem for launch in launches),
        "launches": max(len(a.record.launches) for a in artefacts),
    }


def row(op: Op, promotion: Promotion, gate: BuildGate, place: LocalExecutor, cache: Path, arch: str) -> dict[str, Any]:
    candidate = Candidate(op.name, KernelSet(SET).source(promotion), Origin("committed"))
    found: dict[str, Any] = {"op": op.name, "candidate": candidate.id, "op_contract": op.contract_sha256(), "dims": {}}
    for dims in op.dims:
        asked = list(problems(op, promotion, dims, arch))
        if not asked:
            continue
        report = gate.run(candidate, asked)
        said: dict[str, Any] = {"asked": len(asked), "code": report.result.code}
        if report.result.status is Status.PASS:
            said |= facts(report.artefacts)
        else:
            said["message"] = report.result.message.splitlines()[0][:300]
        found["dims"][dims] = said
        if dims == op.pack.small and report.artefacts:
            result = place.interpret(op, report.artefacts, cache, SECONDS)
            found["interpreter"] = {"code": result.code, "message": result.message.splitlines()[0][:300]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_103a")
    parser.add_argument("--only", default="", metavar="WORD,WORD", help="ops or beginnings of candidates")
    parser.add_argument("--record", type=Path, default=RECORD)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    only, by = chosen.only.split(",") if chosen.only else [], to_json(compiler())
    rows = read(chosen.record, chosen.arch, by)
    place = LocalExecutor(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in promoted():
            op = REGISTRY.get(name)
            with place.gate(op, Path(folder)) as gate:
                for promotion in serving(name):
                    known = rows.get(promotion.candidate, {}).get("op_contract") == op.contract_sha256()
                    wanted = not only or any(w == name or promotion.candidate.startswith(w) for w in only)
                    if wanted and not known:
                        rows[promotion.candidate] = row(op, promotion, gate, place, Path(folder), chosen.arch)
                        write(chosen.record, chosen.arch, by, rows)
                        sys.stdout.write(f"{name} {promotion.candidate[:12]}\n")
                        sys.stdout.flush()
    place.close()


if __name__ == "__main__":
    main()
