"""One rank's end of a ranked kernel: an audited object with its mailboxes, or the stand-in that keeps the protocol.

    subject = load(spec, rank, transport, device, cache)      every rank calls it
    call = subject.bind(buffers)                              a call without arguments on these buffers

Mailboxes and workspaces belong to the subject, not to a set of buffers: all calls of a rank share them, so the number
of the call goes on from set to set, also within and between graph replays.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from kgen.contract import Values
from kgen.contract.ranks import as_sent, ranks_of
from kgen.gates.ranks.job import STANDIN, RankedSpec, buffer
from kgen.gates.ranks.store import PeerLost
from kgen.gates.ranks.transport import Mapped, Transport
from kgen.gates.runner.buffers import Buffer, BufferSet, guarded
from kgen.serve.launcher import Launcher
from kgen.serve.link import link
from kgen.serve.runtime import find_runtime

Call = Callable[[], None]
WAIT_SECONDS = 5.0  # that the stand-in waits for a peer: a kernel needs a bound of its own like it


class Subject(Protocol):
    calls: int  # bound calls made or captured so far; not those of graph replays
    mapped: tuple[Mapped, ...]
    work: tuple[Buffer, ...]

    def bind(self, buffers: BufferSet) -> Call:
        """Raises nothing; the call raises what the kernel does."""


def load(spec: RankedSpec, rank: int, transport: Transport, device: str, cache: Path) -> Subject:
    """Shares the symmetric buffers and loads the object. Raises TransportError, PeerLost, and what linking raises."""
    mapped = tuple(transport.share(buffer(each)) for each in spec.symmetric)
    work = tuple(guarded(shape, dtype, device) for dtype, shape in spec.workspaces)
    for each in work:
        each.data.zero_()
    if spec.engine == STANDIN:
        return StandIn(spec, rank, mapped, work)
    return ArtefactRank(spec, rank, mapped, work, cache)


class ArtefactRank:
    """The kernel itself, loaded by hash."""

    def __init__(
        self, spec: RankedSpec, rank: int, mapped: tuple[Mapped, ...], work: tuple[Buffer, ...], cache: Path
    ) -> None:
        self.spec, self.rank, self.mapped, self.work, self.calls = spec, rank, mapped, work, 0
        runtime = find_runtime()
        self.launcher = Launcher(link(Path(spec.object), spec.object_sha256, cache, runtime), spec.function, runtime)

    def bind(self, buffers: BufferSet) -> Call:
        op, tensors = self.spec.op, buffers.tensors()
        shared = [tensor for each in self.mapped for tensor in (each.own, each.peers)]
        scalars = [int(buffers.scalars[s.name]) if s.dtype == "i32" else buffers.scalars[s.name] for s in op.scalars]
        names = [t.name for t in op.present(self.spec.problem)]
        args = [*(tensors[n] for n in names), *shared, *scalars, self.rank, *(b.tensor for b in self.work)]
        launcher = self.launcher

        def call() -> None:
            self.calls += 1
            launcher(*args)

        return call


class StandIn:
    """The one-shot exchange of ranked_allreduce_residual on the CPU: the same mailbox, sentinel, parities and arming.

    Its waits are bounded: a peer that does not come raises PeerLost with its number. Not covered: other ops, speed.
    """

    SYMMETRIC = "box"
    WORKSPACES = (("i32", (4,)),)  # word 0: the number of the call

    def __init__(self, spec: RankedSpec, rank: int, mapped: tuple[Mapped, ...], work: tuple[Buffer, ...]) -> None:
        self.spec, self.rank, self.mapped, self.work, self.calls = spec, rank, mapped, work, 0
        self.ranks = ranks_of(spec.problem)
        self.boxes = [self._at(int(address)) for address in mapped[0].peers]

    def _at(self, address: int) -> torch.Tensor:
        """A rank's mailbox as words [parities, ranks, words], from its address as a kernel gets it."""
        size = self.mapped[0].symmetric.bytes
        raw = (ctypes.c_char * size).from_address(address)
        return torch.frombuffer(raw, dtype=torch.int32).view(self.mapped[0].symmetric.parities, self.ranks, -1)

    def bind(self, buffers: BufferSet) -> Call:
        def call() -> None:
            self.calls += 1
            number = int(self.work[0].tensor[0])
            if self.spec.fault and FAULTS[self.spec.fault](self, buffers, number):
                return
            self._exchange(buffers, number)

        return call

    def _exchange(self, buffers: BufferSet, number: int) -> None:
        parity, values = number % self.mapped[0].symmetric.parities, buffers.tensors()
        mine = as_sent(values["part"]).view(torch.int32).reshape(-1)
        for peer, box in enumerate(self.boxes):
            if peer != self.rank:
                box[parity, self.rank].copy_(mine)
        parts = []
        for source in range(self.ranks):
            parts.append(mine if source == self.rank else self._came(parity, source))
        self._finish(buffers, torch.stack([p.view(torch.bfloat16).view_as(values["part"]) for p in parts]))
        self.work[0].tensor[0] = number + 1

    def _came(self, parity: int, source: int) -> torch.Tensor:
        """What a peer sent, when no word is the sentinel; the words are armed again."""
        slot, symmetric = self.boxes[self.rank][parity, source], self.mapped[0].symmetric
        assert symmetric.sentinel is not None
        empty = symmetric.sentinel - (symmetric.sentinel >> 31 << 32)
        until = time.monotonic() + WAIT_SECONDS
        while bool((slot == empty).any()):
            if time.monotonic() > until:
                raise PeerLost(f"rank {self.rank} waited {WAIT_SECONDS:.0f} s for rank {source}")
            time.sleep(0)
        came = slot.clone()
        if self.spec.fault != "never_arms":
            slot.fill_(empty)
        return came

    def _finish(self, buffers: BufferSet, parts: torch.Tensor) -> None:
        """The op's own formulas over all ranks, of which this rank keeps its part."""
        prefix = buffers.tensors()["prefix"]
        values: Values = {"part": parts, "prefix": prefix.expand(self.ranks, *prefix.shape)}
        for name, value in self.spec.op.stock(self.spec.problem)(values).items():
            buffers.tensors()[name].copy_(value[self.rank])


def _flips_a_bit(subject: StandIn, buffers: BufferSet, number: int) -> bool:
    """The last rank's third call gives another bit in one element of o."""
    if subject.rank == subject.ranks - 1 and number == 2:
        subject._exchange(buffers, number)
        buffers.tensors()["o"].view(torch.int16).view(-1)[7] ^= 1
        return True
    return False


def _all_flip_a_bit(subject: StandIn, buffers: BufferSet, number: int) -> bool:
    """Every rank gives the same wrong bit: ranks agree, and the reference does not."""
    subject._exchange(buffers, number)
    buffers.tensors()["o"].view(torch.int16).view(-1)[7] ^= 1
    return True


def _skips(subject: StandIn, buffers: BufferSet, number: int) -> bool:
    """The last rank leaves its fourth call out: nothing is sent, nothing written."""
    return subject.rank == subject.ranks - 1 and subject.calls == 4


def _wrong_parity(subject: StandIn, buffers: BufferSet, number: int) -> bool:
    """The last rank's eighth call uses the other parity."""
    if subject.rank == subject.ranks - 1 and number == 7:
        subject._exchange(buffers, number + 1)
        return True
    return False


def _dies(subject: StandIn, buffers: BufferSet, number: int) -> bool:
    """The last rank is killed in its third call, as by kill -9."""
    if subject.rank == subject.ranks - 1 and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return False


def _goes_on(subject: StandIn, buffers: BufferSet, number: int) -> bool:
    return False


FAULTS: Mapping[str, Callable[[StandIn, BufferSet, int], bool]] = {  # True: the call is done
    "flips_a_bit": _flips_a_bit,
    "all_flip_a_bit": _all_flip_a_bit,
    "skips": _skips,
    "wrong_parity": _wrong_parity,
    "never_arms": _goes_on,  # acts in _came
    "dies": _dies,
}
