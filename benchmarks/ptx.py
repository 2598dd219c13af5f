"""Speed of the PTX interpreter: the promoted moe_shared source, built here and run on the CPU.

    python benchmarks/ptx.py [--dims nano k3-tp8] [--tokens 1 4 16] [--seeds 0 1] [--record benchmarks/ptx.json]

One line a run: seconds, millions of thread and thousands of warp instructions a second, peak memory of the process.
`--record` writes the same with the source, the processor and the versions.
"""

import argparse
import json
import math
import os
import platform
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from kgen.contract import DTYPES, Op, Role
from kgen.gates.artefacts import Artefact
from kgen.gates.compile import CompileGate
from kgen.gates.ptx import Buffer, Result, run
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin, Problem

ROOT = Path(__file__).resolve().parent.parent
SET = ROOT / "generated_kernels"
OP = "moe_shared"


def source() -> str:
    """The source that was promoted last."""
    promotions = json.loads((SET / "manifest.json").read_text())["promotions"]
    newest = [p for p in promotions if p["builds"].startswith(f"{OP}/")][-1]
    return (SET / OP / f"{newest['candidate'][:12]}.py").read_text()


def buffers(op: Op, problem: Problem, artefact: Artefact) -> dict[str, Buffer]:
    values, sizes = op.inputs(problem, op.families[0].name, 1, "cpu"), op.sizes(problem)
    found = {}
    for spec in op.present(problem):
        shape = spec.sizes(sizes)
        value = values.get(spec.name)
        if isinstance(value, torch.Tensor) and spec.role is not Role.OUT:
            data = value.contiguous().view(torch.uint8).reshape(-1).numpy()
        else:
            data = np.full(math.prod(shape) * DTYPES[spec.dtype].bytes, 0xFF, np.uint8)
        found[spec.name] = Buffer(data, spec.dtype, shape, spec.role.value, spec.role is not Role.OUT)
    for number, (dtype, shape) in enumerate(artefact.record.workspaces):
        data = np.zeros(math.prod(shape) * DTYPES[dtype].bytes, np.uint8)
        found[f"workspace{number}"] = Buffer(data, dtype, tuple(shape), "workspace", True)
    return found


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def row(name: str, seed: int, result: Result) -> dict[str, object]:
    """One run as data; seconds, instructions, MiB."""
    counts = {"thread_instructions": result.lanes, "warp_instructions": result.warps}
    end = result.skipped or result.stopped
    said = {"findings": len(result.findings), "ended": end, "peak_mib": round(peak_mib())}
    return {"problem": name, "seed": seed, "seconds": round(result.seconds, 3), **counts, **said}


def machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), "")
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}


def line(name: str, seed: int, result: Result) -> str:
    peak = peak_mib()
    rates = f"{result.lanes / result.seconds / 1e6:7.2f} M thread, {result.warps / result.seconds / 1e3:7.1f} k warp"
    end = result.skipped or result.stopped or f"{len(result.findings)} findings"
    return f"{name:28} seed {seed}  {result.seconds:7.3f} s  {rates} instructions/s  {peak:6.0f} MiB  {end}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="+", default=["nano", "k3-tp8"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--record", type=Path, help="JSON file to write")
    chosen = parser.parse_args()
    op, rows = REGISTRY.get(OP), []
    problems = [op.problem(dims, tokens, "sm_90a") for dims in chosen.dims for tokens in chosen.tokens]
    with tempfile.TemporaryDirectory() as cache, CompileGate(op, Path(cache)) as gate:
        report = gate.run(Candidate(OP, source(), Origin("file")), problems)
        if not report.artefacts:
            raise SystemExit(report.result.message)
        for problem, artefact in zip(problems, report.artefacts, strict=True):
            given = buffers(op, problem, artefact)
            for seed in chosen.seeds:
                result = run(artefact.ptx.read_text(), artefact.record.launches, given, seed)
                sys.stdout.write(line(problem.key, seed, result))
                rows.append(row(problem.key, seed, result))
    if chosen.record:
        candidate = Candidate(OP, source(), Origin("file")).id
        body = {"op": OP, "candidate": candidate, "machine": machine(), "runs": rows}
        chosen.record.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
