"""Runner side of hardware counters: a few calls of one candidate on the op's real inputs, for a profiler to watch.

A job: {"spec": LoadSpec, "cache", "device", "seed", "calls"}. Only the calls after the first lie between
cudaProfilerStart and Stop: loading a module, filling buffers and the first call are not profiled. Nothing is judged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kgen.gates.runner import subject
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.ops import REGISTRY
from kgen.records import from_json


@torch.no_grad()
def run(job: Mapping[str, Any], out: Out) -> dict[str, Any]:
    """Launches per kernel, all calls together."""
    spec, device = from_json(LoadSpec, job["spec"]), str(job["device"])
    op = REGISTRY.get(spec.problem.op)
    out.at(f"prepare {spec.problem.key}")
    values = op.inputs(spec.problem, op.families[0].name, int(job["seed"]), device)
    buffers = BufferSet(op, spec.problem, device, spec.workspaces, values=values)
    buffers.load(values)
    buffers.poison()
    call = subject.load(spec, Path(job["cache"])).bind(buffers)
    with out.candidate(f"calls of {spec.problem.key}", device):
        call()
        if device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        for _ in range(int(job["calls"])):
            call()
        if device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    return {"calls": 1 + int(job["calls"])}
