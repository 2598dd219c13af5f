"""One rank's side of the question whether memory can be shared here: each rank writes into every peer's copy."""

import ctypes
from typing import Any

import torch

from kgen.contract.ranks import Symmetric
from kgen.gates.ranks.transport import TransportError
from kgen.gates.ranks.worker import Bench

WORDS = 1024


def run(bench: Bench) -> dict[str, Any]:
    bench.out.at("share")
    mapped = bench.transport().share(Symmetric("probe", "i32", (bench.ranks, WORDS), parities=2))
    bench.out.at("write to peers")
    mine = torch.arange(WORDS, dtype=torch.int32, device=bench.device) + 10_000 * (bench.rank + 1)
    for address in mapped.peers.tolist():
        _copy(address + bench.rank * WORDS * 4, mine, bench.device)
    bench.meeting.barrier()
    got = mapped.own[0].cpu()
    for source in range(bench.ranks):
        if not torch.equal(got[source], torch.arange(WORDS, dtype=torch.int32) + 10_000 * (source + 1)):
            raise TransportError(f"what rank {source} wrote is not what rank {bench.rank} holds")
    bench.meeting.barrier()
    return {"facts": _facts(bench)}


def _copy(to: int, source: torch.Tensor, device: str) -> None:
    """Words to an address, by the driver on a GPU."""
    if device == "cpu":
        ctypes.memmove(to, source.data_ptr(), WORDS * 4)
        return
    size = ctypes.c_size_t(WORDS * 4)
    done = ctypes.CDLL("libcuda.so.1").cuMemcpy(ctypes.c_uint64(to), ctypes.c_uint64(source.data_ptr()), size)
    torch.cuda.synchronize()
    if done != 0:
        raise TransportError(f"cuMemcpy to a peer: error {done}")


def _facts(bench: Bench) -> dict[str, Any]:
    if bench.device == "cpu":
        return {"device": "cpu"}
    properties = torch.cuda.get_device_properties(bench.rank)
    others = [r for r in range(bench.ranks) if r != bench.rank]
    reach = all(torch.cuda.can_device_access_peer(bench.rank, other) for other in others)
    nccl: Any = torch.cuda.nccl
    return {"device": properties.name, "peer_access": reach, "nccl": ".".join(str(n) for n in nccl.version())}
