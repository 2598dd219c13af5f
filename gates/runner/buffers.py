"""Buffers that a kernel runs on: guard bytes on both sides, poisoned outputs, one set per layer.

Not covered: reads outside a buffer (compute-sanitizer's part); writes more than GUARD bytes away.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kgen.contract import DTYPES, Op, Role, Values
from kgen.contract.rules import same_bits as same_bits  # used with the buffers
from kgen.records import Problem

GUARD = 4096  # bytes on each side; also keeps the 512-byte alignment of the allocator
PATTERN = 0xC5
POISON = 0xFF  # NaN in every float format used
SECOND_POISON = 0x5A  # another pattern for a repeat: what is not written differs between the two

Workspaces = Sequence[tuple[str, Sequence[int]]]  # (contract dtype name, shape) each


PITCH = 64  # bytes between the entries of a pitched tensor: its first stride is free, so it is never compact here


@dataclass(frozen=True)
class Buffer:
    """`tensor` lies inside `raw` (uint8), between two guards; `gap`: the bytes after each entry of a pitched one."""

    raw: torch.Tensor
    tensor: torch.Tensor
    guard: int
    gap: torch.Tensor | None = None

    @property
    def data(self) -> torch.Tensor:
        """The bytes between the guards."""
        return self.raw[self.guard : self.raw.numel() - self.guard]

    def intact(self) -> torch.Tensor:
        """A bool tensor on the buffer's device."""
        end = self.raw.numel() - self.guard
        whole = (self.raw[: self.guard] == PATTERN).all() & (self.raw[end:] == PATTERN).all()
        return whole if self.gap is None else whole & (self.gap == PATTERN).all()


def guarded(shape: Sequence[int], dtype: str, device: str, guard: int = GUARD, pitched: bool = False) -> Buffer:
    """An uninitialised tensor of a contract dtype name between two guards, with gaps between its entries if pitched."""
    kind: torch.dtype = getattr(torch, DTYPES[dtype].torch)
    entry = math.prod(shape[1:]) * DTYPES[dtype].bytes
    step = -(-entry // PITCH) * PITCH + PITCH if pitched else entry  # a multiple of 16 bytes
    raw = torch.full((shape[0] * step + 2 * guard,), PATTERN, dtype=torch.uint8, device=device)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    strides[0] = step // DTYPES[dtype].bytes
    # set_, not a view: torch.compile and DLPack then see an ordinary tensor
    tensor = torch.empty(0, dtype=kind, device=device)
    tensor.set_(raw.untyped_storage(), guard // DTYPES[dtype].bytes, tuple(shape), strides)
    gap = raw[guard : guard + shape[0] * step].view(shape[0], step)[:, entry:] if pitched else None
    return Buffer(raw, tensor, guard, gap)


def _zeroed(workspaces: Workspaces, device: str, guard: int) -> list[Buffer]:
    made = [guarded(shape, dtype, device, guard) for dtype, shape in workspaces]
    for buffer in made:
        buffer.data.zero_()
    return made


def run_time_sizes(op: Op, problem: Problem, values: Values) -> dict[str, int]:
    """The op's run-time dims as these values have them."""
    shapes = ((t.shape, values[t.name]) for t in op.present(problem) if t.name in values)
    pairs = (zip(names, v.shape, strict=True) for names, v in shapes if isinstance(v, torch.Tensor))
    return {name: size for pair in pairs for name, size in pair if name in op.runtime_dims and isinstance(name, str)}


class BufferSet:
    """The tensors of one call, in buffers of their own. One set stands for one layer of a model."""

    def __init__(
        self,
        op: Op,
        problem: Problem,
        device: str,
        workspaces: Workspaces = (),
        guard: int = GUARD,
        values: Values | None = None,
    ) -> None:
        """`values`: what will be loaded, where the op's run-time dims are not those that it states for tests."""
        self.op, self.problem, self.device, self.guard = op, problem, device, guard
        self.sizes = {**op.sizes(problem), **run_time_sizes(op, problem, values or {})}
        specs = op.present(problem)
        self.buffers = {t.name: guarded(t.sizes(self.sizes), t.dtype, device, guard, t.pitched) for t in specs}
        self.work = _zeroed(workspaces, device, guard)
        self.scalars: dict[str, int | float] = {}

    def sibling(self, workspaces: Workspaces, own: Sequence[str] = ()) -> "BufferSet":
        """A set that shares this one's buffers, except those named in `own`, with workspaces of its own."""
        other = copy.copy(self)
        other.scalars = dict(self.scalars)
        other.work = _zeroed(workspaces, self.device, self.guard)
        other.buffers = dict(self.buffers)
        for spec in self.op.present(self.problem):
            if spec.name in own:
                shape = spec.sizes(self.sizes)
                other.buffers[spec.name] = guarded(shape, spec.dtype, self.device, self.guard, spec.pitched)
        return other

    @property
    def nbytes(self) -> int:
        return sum(b.data.numel() for b in self.buffers.values())

    def names(self, *roles: Role) -> list[str]:
        return [t.name for t in self.op.present(self.problem) if t.role in roles]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: b.tensor for name, b in self.buffers.items()}

    def workspaces(self) -> list[torch.Tensor]:
        return [b.tensor for b in self.work]

    def values(self) -> Values:
        return {**self.tensors(), **self.scalars}

    def load(self, values: Mapping[str, torch.Tensor | int | float], only: Sequence[str] | None = None) -> None:
        """Copy inputs, weights and states in (or only those named), take the scalars over; outputs stay."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if only is None or name in only:
                    self.buffers[name].tensor.copy_(value)
            else:
                self.scalars[name] = value

    def poison(self, byte: int = POISON) -> None:
        """Outputs only, which are never pitched."""
        for name in self.names(Role.OUT):
            self.buffers[name].data.fill_(byte)

    def written(self) -> dict[str, torch.Tensor]:
        """Copies of outputs and states as they are now."""
        return {n: self.buffers[n].tensor.clone() for n in self.names(Role.OUT, Role.STATE)}

    def broken_guards(self) -> list[str]:
        buffers = {**self.buffers, **{f"workspace {i}": b for i, b in enumerate(self.work)}}
        flags = torch.stack([b.intact() for b in buffers.values()]).tolist()
        return [name for name, intact in zip(buffers, flags, strict=True) if not intact]

    def changed_inputs(self, pristine: Mapping[str, torch.Tensor | int | float]) -> list[str]:
        """Inputs and weights that are not bit for bit what was loaded."""
        return [
            n
            for n in self.names(Role.IN, Role.WEIGHT)
            if isinstance(want := pristine[n], torch.Tensor) and not same_bits(self.buffers[n].tensor, want)
        ]
