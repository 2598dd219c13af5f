"""What a serving engine runs for the same step: a library's all-reduce, then the op's unfused rest, on plain tensors.

    opened(bench, spec, names, seed, fresh) -> name -> Baseline      every rank calls it

nccl: torch.distributed.all_reduce in place. one_shot, two_shot: torch symmetric memory's operators of that name, on
symmetric memory. Each is tried once by itself before it is captured; one that fails on any rank is left out on all, and
its error is recorded. Not covered: multimem operators (multicast is not used); ops other than RESTS has.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from kgen.gates.ranks.job import RankedSpec
from kgen.gates.ranks.transport import refuse_multicast, world
from kgen.gates.ranks.worker import Bench
from kgen.gates.runner.buffers import BufferSet

Call = Callable[[], object]
Reduce = Callable[[torch.Tensor], torch.Tensor]
Rest = Callable[[torch.Tensor, BufferSet], None]


def _nccl(part: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(part)
    return part


def _one_shot(part: torch.Tensor) -> torch.Tensor:
    name = world().group_name
    return torch.ops.symm_mem.one_shot_all_reduce(part, "sum", name)  # type: ignore[no-any-return]


def _two_shot(part: torch.Tensor) -> torch.Tensor:
    name = world().group_name
    return torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", name)  # type: ignore[no-any-return]


NCCL, ONE_SHOT, TWO_SHOT = "nccl", "one_shot", "two_shot"
REDUCES: Mapping[str, Reduce] = {NCCL: _nccl, ONE_SHOT: _one_shot, TWO_SHOT: _two_shot}
PLAIN = (NCCL,)  # those that take any tensor


def _add(o: torch.Tensor, buffers: BufferSet) -> None:
    buffers.tensors()["prefix"].add_(o)


RESTS: Mapping[str, Rest] = {"ranked_allreduce_residual": _add}


def _both(reduce: Reduce, rest: Rest, part: torch.Tensor, buffers: BufferSet) -> None:
    rest(reduce(part), buffers)


class Baseline:
    """One baseline on the sets of a rotation: `part` of each in memory that the library can reduce."""

    def __init__(self, name: str, spec: RankedSpec, sets: Sequence[BufferSet], device: str) -> None:
        self.name, self.sets, self.rest = name, sets, RESTS[spec.problem.op]
        self.parts = [_place(name, each.tensors()["part"], device) for each in sets]

    def refill(self) -> None:
        for part, each in zip(self.parts, self.sets, strict=True):
            part.copy_(each.tensors()["part"])

    def calls(self) -> list[Call]:
        both = partial(_both, REDUCES[self.name], self.rest)
        return [partial(both, part, each) for part, each in zip(self.parts, self.sets, strict=True)]

    def once(self) -> torch.Tensor:
        """The sum of the first set, by itself."""
        self.refill()
        return REDUCES[self.name](self.parts[0]).clone()


def _place(name: str, part: torch.Tensor, device: str) -> torch.Tensor:
    if name in PLAIN:
        return torch.empty_like(part)
    import torch.distributed._symmetric_memory as memory

    made: Any = memory.empty(part.shape, dtype=part.dtype, device=torch.device(device))
    refuse_multicast(memory.rendezvous(made, world()))
    return made  # type: ignore[no-any-return]


def opened(
    bench: Bench, spec: RankedSpec, names: Sequence[str], seed: int, fresh: Callable[[], list[BufferSet]]
) -> dict[str, Baseline]:
    """Those that work on all ranks; a record for each, with its sum of the first set or its error. `fresh`: makes the
    sets of one, filled."""
    found: dict[str, Baseline] = {}
    for name in names if spec.problem.op in RESTS else ():
        bench.out.at(f"baseline {name} {spec.label}")
        said, made, total = "", None, None
        try:
            made = Baseline(name, spec, fresh(), bench.device)
            total = made.once()
            torch.cuda.synchronize()
        except (RuntimeError, AttributeError) as error:  # a torch without the operator has no such attribute
            said = f"{type(error).__name__}: {str(error).strip()}"
        complaints = bench.meeting.complaints(said)
        body: dict[str, Any] = {"problem": spec.label, "baseline": name, "complaints": complaints, "seed": seed}
        if made is not None and total is not None and not complaints:
            found[name] = made
            body["sum"] = bench.out.tensor(total)
        bench.out.record(body)
    return found
