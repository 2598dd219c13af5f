"""Contracts of ops that several ranks compute together: problems with ranks, symmetric buffers, rules over all ranks.

A problem has as many ranks as its axis `ranks` says, and one where it has no such axis: so keys and hashes of the
ops of one rank are what they were. A `RankedOp` holds the values of all ranks at once: each tensor of `inputs`,
`stock` and `reference` has one more dimension in front, the rank, and the shapes of its `TensorSpec`s are one rank's.
References are over all ranks, in rank order. `of_rank` gives one rank's arguments.

Arguments of a ranked kernel, in this order: the op's tensors; for each symmetric buffer that it declares its own copy
([parities, *shape]) and the addresses of that buffer on every rank (i64 [ranks], its own among them); the op's scalars;
`rank` (i32); then workspaces and the stream.

Hard rules: outputs named in `same` are bit for bit equal on all ranks; a second run gives the same bits (`apart`);
after a call, mailboxes are armed as declared (`unarmed`). Not covered: how memory is shared between processes.
"""

import inspect
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from kgen.contract.op import Op, Values
from kgen.contract.tensors import DTYPES
from kgen.records import Problem, sha256_text

AXIS = "ranks"
MOST = 16  # ranks
WORD_BYTES = 4
PAIR_SENTINEL = 0x8000_0000  # the bf16 pair (+0, -0): senders turn -0 into +0, so no data look like it

Outputs = dict[str, torch.Tensor]


def ranks_of(problem: Problem) -> int:
    """How many ranks compute the problem together: 1 where it has no such axis."""
    return int(problem.axes.get(AXIS, "1"))


@dataclass(frozen=True)
class Symmetric:
    """A buffer that every rank has at the same size and whose addresses all ranks know; declared like a workspace.

    `shape`: of one parity; call number n uses parity n % parities. `sentinel`: the 32-bit word that every word holds
    before the first call and that no data may equal; None: no mailbox, zeroed once. `lag`: calls after the one that
    used a parity until it is armed again; a peer may be one call ahead, hence lag + 2 <= parities.
    Raises ValueError (one line) for a declaration that cannot be.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parities: int = 2
    sentinel: int | None = PAIR_SENTINEL
    lag: int = 0

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.dtype not in DTYPES:
            raise ValueError(f"symmetric buffer {self.name!r:.60} of dtype {self.dtype!r:.60} is not known")
        if not self.shape or min(self.shape) < 1 or self.one % WORD_BYTES:
            raise ValueError(f"{self.name}: a parity of shape {self.shape} is no whole number of 32-bit words")
        if self.sentinel is None:
            if self.parities < 1 or self.lag:
                raise ValueError(f"{self.name}: without a sentinel nothing is armed again: lag 0, parities 1 or more")
        elif not 0 <= self.sentinel < 1 << 32:
            raise ValueError(f"{self.name}: the sentinel is one 32-bit word, not {self.sentinel:#x}")
        elif self.lag < 0 or self.parities < self.lag + 2:
            raise ValueError(
                f"{self.name}: a peer may be one call ahead: {self.parities} parities are too few for lag {self.lag}"
            )

    @property
    def one(self) -> int:
        """Bytes of one parity."""
        return math.prod(self.shape) * DTYPES[self.dtype].bytes

    @property
    def bytes(self) -> int:
        """Of all parities, on one rank."""
        return self.one * self.parities

    def armed(self) -> torch.Tensor:
        """Its first contents: [parities, *shape]."""
        word = 0 if self.sentinel is None else self.sentinel
        words = torch.full((self.bytes // WORD_BYTES,), word - (word >> 31 << 32), dtype=torch.int32)
        dtype: torch.dtype = getattr(torch, DTYPES[self.dtype].torch)
        return words.view(dtype).reshape(self.parities, *self.shape)

    def unarmed(self, contents: torch.Tensor, calls: int, rank: int) -> list[str]:
        """One line for each parity that should be armed when all ranks have returned from `calls` calls, and is not."""
        if self.sentinel is None:
            return []
        fresh = {(calls - 1 - back) % self.parities for back in range(min(self.lag, calls))}
        words = contents.contiguous().view(torch.uint8).reshape(self.parities, -1).view(torch.int32)
        want = self.armed().view(torch.uint8).reshape(self.parities, -1).view(torch.int32)
        found = []
        for parity in range(self.parities):
            wrong = (words[parity] != want[parity]).nonzero()
            if parity not in fresh and len(wrong):
                at = int(wrong[0])
                found.append(
                    f"{self.name} of rank {rank}, parity {parity}: word {at} holds"
                    f" {int(words[parity, at]) & 0xFFFF_FFFF:#010x} after {calls} calls, not the sentinel"
                    f" {self.sentinel:#010x}; {len(wrong)} words are not armed"
                )
        return found


def as_sent(part: torch.Tensor) -> torch.Tensor:
    """What a sender puts into a mailbox: -0 becomes +0, all other bits stay."""
    return torch.where(part == 0, torch.zeros_like(part), part)


def in_rank_order(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """((part_0 + part_1) + part_2) + ... in `dtype`, each sum rounded."""
    total = parts[0].to(dtype)
    for part in parts[1:]:
        total = total + part.to(dtype)
    return total


def of_rank(values: Values, rank: int) -> Values:
    """One rank's arguments: its slices of the tensors, the scalars, and `rank`."""
    mine = {k: v[rank] if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    return {**mine, "rank": rank}


def stacked(outputs: Sequence[Outputs]) -> Outputs:
    """Outputs of one call, a rank each in rank order, as a `RankedOp` judges them."""
    return {name: torch.stack([of[name] for of in outputs]) for name in outputs[0]}


def apart(first: Outputs, second: Outputs) -> list[str]:
    """One line for each output in which two runs on the same inputs differ in a bit."""
    return [
        f"{name} is not the same in two runs: rank {at[0]}, {list(at[1:])}"
        for name in first
        if (at := _first_difference(first[name], second[name])) is not None
    ]


def _first_difference(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    size = a.element_size()
    x, y = (t.contiguous().view(torch.uint8).reshape(*t.shape, size) for t in (a, b))
    differs = (x != y).any(-1).nonzero()
    return tuple(differs[0].tolist()) if len(differs) else None


class RankedOp(Op):
    """An op of several ranks. Its axes hold `ranks`; a subclass's `hard_rules` add to these."""

    same: ClassVar[tuple[str, ...]]  # outputs and states that must be equal on all ranks

    def sizes(self, problem: Problem) -> dict[str, int]:
        return {**super().sizes(problem), AXIS: ranks_of(problem)}

    def hard_rules(self, problem: Problem, values: Values, got: Outputs) -> list[str]:
        """Bit-identical on all ranks: where two ranks differ, they route tokens differently from then on."""
        found = []
        for name in self.same:
            for rank in range(1, got[name].shape[0]):
                at = _first_difference(got[name][0], got[name][rank])
                if at is not None:
                    found.append(f"{name} of rank {rank} differs from rank 0's at {list(at)}")
                    break
        return found

    def _signature_more(self) -> dict[str, object]:
        own = sha256_text(inspect.getsource(sys.modules[__name__]))
        return {**super()._signature_more(), AXIS: {"same": list(self.same), "source": own}}
