"""Why a GPU gate cannot run on this machine, and the command that helps."""

from collections.abc import Sequence

import torch

from kgen.contract import Op
from kgen.contract.ranks import RankedOp, ranks_of
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
    if isinstance(op, RankedOp):
        return _of_ranks(specs, gate, prefix, command)
    if not torch.cuda.is_available():
        message = f"no CUDA GPU here; next: {command}"
        return GateResult(gate, Status.SKIP, f"{prefix}.no_gpu", message, {}, 0.0, GATE_CONTRACT)
    here = device_arch()
    if not any(s.problem.arch == here for s in specs):
        wanted = ", ".join(sorted({s.problem.arch for s in specs})) or "none"
        message = f"built for {wanted}, this GPU is {here}; next: {command}"
        return GateResult(gate, Status.SKIP, f"{prefix}.other_gpu", message, {}, 0.0, GATE_CONTRACT)
    return None


def _of_ranks(specs: Sequence[LoadSpec], gate: str, prefix: str, command: str) -> GateResult:
    """Always a skip: a gate's one process on one GPU runs no ranks; a kit starts a process for each."""
    need = max((ranks_of(s.problem) for s in specs), default=1)
    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if have < need:
        reason, why = "few_gpus" if have else "no_gpu", f"needs {need} GPUs of one host, here are {have}"
    else:
        reason, why = "kit", "a kit starts the processes of all ranks, this gate starts one"
    return GateResult(gate, Status.SKIP, f"{prefix}.{reason}", f"{why}; next: {command}", {}, 0.0, GATE_CONTRACT)


def fitting(specs: Sequence[LoadSpec], arch: str) -> list[LoadSpec]:
    """Those that run on a GPU of this arch; all of them where `arch` is "" (on a CPU)."""
    return [s for s in specs if arch in ("", s.problem.arch)]
