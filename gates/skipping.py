"""Why a GPU gate cannot run on this machine, and the command that helps."""

from collections.abc import Sequence

import torch

from kgen.contract import Op
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import device_arch
from kgen.gates.runner.job import PTX, LoadSpec
from kgen.records import GateResult, Status

NEXT = "on a GPU host: kgen propose --op {op}; without one: kgen kit RUN -o kit.pyz, run it there, kgen ingest"


def skip_without(
    device: str, op: Op, specs: Sequence[LoadSpec], gate: str, prefix: str, command: str
) -> GateResult | None:
    """A skip with the exact next command when these artefacts cannot run on this machine, else None."""
    command = command or NEXT.format(op=op.name)
    if device in ("cpu", PTX):
        return None
    if not torch.cuda.is_available():
        message = f"no CUDA GPU here; next: {command}"
        return GateResult(gate, Status.SKIP, f"{prefix}.no_gpu", message, {}, 0.0, GATE_CONTRACT)
    here = device_arch()
    if not any(s.problem.arch == here for s in specs):
        wanted = ", ".join(sorted({s.problem.arch for s in specs})) or "none"
        message = f"built for {wanted}, this GPU is {here}; next: {command}"
        return GateResult(gate, Status.SKIP, f"{prefix}.other_gpu", message, {}, 0.0, GATE_CONTRACT)
    return None


def fitting(specs: Sequence[LoadSpec], arch: str) -> list[LoadSpec]:
    """Those that run on a GPU of this arch; all of them where `arch` is "" (on a CPU)."""
    return [s for s in specs if arch in ("", s.problem.arch)]
