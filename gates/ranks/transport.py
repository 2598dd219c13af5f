"""Memory that every rank has at the same size, and the addresses of all copies as each rank sees them.

    transport = open_transport(name, meeting, device, folder)
    mapped = transport.share(symmetric)       every rank calls it, for the same buffers in the same order
    mapped.own                                its own copy [parities, *shape], armed, on the device
    mapped.peers                              i64 [ranks] on the device: addresses in rank order, its own among them

`symm`: torch symmetric memory. `ipc`: CUDA IPC handles of plain device memory. `host`: memory of the host that
processes share, for the stand-in and tests. No multicast object is made or used: a handle that has one is refused.
Own copies lie between guard bytes. Not covered: several hosts; giving memory back before the process ends.
"""

import ctypes
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from kgen.contract import DTYPES
from kgen.contract.ranks import Symmetric
from kgen.gates.ranks.store import Meeting
from kgen.gates.runner.buffers import GUARD, PATTERN, Buffer, guarded

SYMM, IPC, HOST = "symm", "ipc", "host"
NO_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}
LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
HANDLE_BYTES = 64


class TransportError(RuntimeError):
    """Memory cannot be shared this way here; one line."""


@dataclass(frozen=True)
class Mapped:
    """One symmetric buffer as a rank has it. `keep`: what must stay alive with it."""

    symmetric: Symmetric
    buffer: Buffer
    peers: torch.Tensor
    keep: object = None

    @property
    def own(self) -> torch.Tensor:
        return self.buffer.tensor

    def arm(self) -> None:
        self.own.copy_(self.symmetric.armed())


class Transport(Protocol):
    name: str

    def share(self, symmetric: Symmetric) -> Mapped:
        """Raises TransportError, PeerLost."""


def open_transport(name: str, meeting: Meeting, device: str, folder: Path) -> Transport:
    """Raises TransportError for a machine or an environment that cannot have it."""
    if name == HOST:
        return HostMemory(meeting, folder)
    for variable, value in NO_MULTICAST.items():
        if os.environ.get(variable) != value:
            raise TransportError(f"{variable} must be {value}: multicast is not used")
    return SymmetricMemory(meeting, device) if name == SYMM else IpcMemory(meeting, device)


def _between_guards(raw: torch.Tensor, symmetric: Symmetric) -> Buffer:
    """`raw` (uint8) as a buffer with guards at both ends."""
    raw.fill_(PATTERN)
    dtype: torch.dtype = getattr(torch, DTYPES[symmetric.dtype].torch)
    shape = (symmetric.parities, *symmetric.shape)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    tensor = torch.empty(0, dtype=dtype, device=raw.device)
    first = (raw.storage_offset() + GUARD) // DTYPES[symmetric.dtype].bytes
    tensor.set_(raw.untyped_storage(), first, shape, strides)
    return Buffer(raw, tensor, GUARD)


def _finished(mapped: Mapped, meeting: Meeting) -> Mapped:
    """Armed on every rank before any rank goes on."""
    mapped.arm()
    if mapped.own.is_cuda:
        torch.cuda.synchronize()
    meeting.barrier()
    return mapped


class HostMemory:
    """Files in memory that processes of this host map."""

    name = HOST

    def __init__(self, meeting: Meeting, folder: Path) -> None:
        self.meeting, self.folder, self._count = meeting, folder, 0

    def share(self, symmetric: Symmetric) -> Mapped:
        self._count += 1
        size = symmetric.bytes + 2 * GUARD
        paths = [self.folder / f"symmetric-{self._count}-{rank}" for rank in range(self.meeting.ranks)]
        own = torch.from_file(str(paths[self.meeting.rank]), shared=True, size=size, dtype=torch.uint8)
        self.meeting.barrier()
        others = [
            own if rank == self.meeting.rank else torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
            for rank, path in enumerate(paths)
        ]
        peers = torch.tensor([other.data_ptr() + GUARD for other in others], dtype=torch.int64)
        return _finished(Mapped(symmetric, _between_guards(own, symmetric), peers, others), self.meeting)


class SymmetricMemory:
    """torch.distributed._symmetric_memory over the group of all ranks."""

    name = SYMM

    def __init__(self, meeting: Meeting, device: str) -> None:
        self.meeting, self.device = meeting, device
        join(meeting)

    def share(self, symmetric: Symmetric) -> Mapped:
        import torch.distributed._symmetric_memory as memory

        raw: Any = memory.empty(symmetric.bytes + 2 * GUARD, dtype=torch.uint8, device=torch.device(self.device))
        handle: Any = memory.rendezvous(raw, world())
        refuse_multicast(handle)
        own = raw.data_ptr()
        offset = own - int(handle.buffer_ptrs[self.meeting.rank])
        if [int(o) for o in self.meeting.exchange(str(offset))] != [offset] * self.meeting.ranks:
            raise TransportError("ranks have their symmetric memory at different offsets")
        peers = torch.tensor([int(p) + offset + GUARD for p in handle.buffer_ptrs], dtype=torch.int64)
        made = Mapped(symmetric, _between_guards(raw, symmetric), peers.to(self.device), (raw, handle))
        return _finished(made, self.meeting)


def join(meeting: Meeting) -> None:
    """Make the NCCL group of all ranks, where there is none yet. Every rank calls it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("nccl", store=meeting.store, rank=meeting.rank, world_size=meeting.ranks)


def world() -> Any:
    """The NCCL group of all ranks, once it is made."""
    import torch.distributed as dist

    return dist.group.WORLD


def refuse_multicast(handle: Any) -> None:
    """Raises TransportError for a handle of torch symmetric memory that has a multicast address."""
    if int(getattr(handle, "multicast_ptr", 0) or 0):
        raise TransportError("this symmetric memory has a multicast address, though multicast is switched off")


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class IpcMemory:
    """Plain device memory of torch's allocator, exported and opened through the driver."""

    name = IPC

    def __init__(self, meeting: Meeting, device: str) -> None:
        self.meeting, self.device = meeting, device
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._opened: dict[tuple[int, bytes], int] = {}

    def share(self, symmetric: Symmetric) -> Mapped:
        buffer = guarded((symmetric.parities, *symmetric.shape), symmetric.dtype, self.device)
        torch.cuda.synchronize()
        base = self._base(buffer.tensor.data_ptr())
        said = self.meeting.exchange(f"{self._export(base).hex()} {buffer.tensor.data_ptr() - base}")
        peers = []
        for rank, text in enumerate(said):
            handle, offset = text.split()
            own = rank == self.meeting.rank
            peers.append((base if own else self._open(rank, bytes.fromhex(handle))) + int(offset))
        addresses = torch.tensor(peers, dtype=torch.int64).to(self.device)
        return _finished(Mapped(symmetric, buffer, addresses, self), self.meeting)

    def _base(self, address: int) -> int:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        done = self._driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        self._check(done, "cuMemGetAddressRange")
        return int(base.value)

    def _export(self, base: int) -> bytes:
        handle = _Handle()
        self._check(self._driver.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(base)), "cuIpcGetMemHandle")
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_BYTES)

    def _open(self, rank: int, data: bytes) -> int:
        if (rank, data) not in self._opened:
            address, handle = ctypes.c_uint64(), _Handle.from_buffer_copy(data)
            flags = ctypes.c_uint(LAZY_PEER_ACCESS)
            done = self._driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, flags)
            self._check(done, f"cuIpcOpenMemHandle of rank {rank}'s memory")
            self._opened[rank, data] = int(address.value)
        return self._opened[rank, data]

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise TransportError(f"{what}: error {code}: {(text.value or b'unknown').decode()}")
