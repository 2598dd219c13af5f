"""What sequences carry from step to step, and where: KDA slots, paged MLA cache, lengths.

Rows are `requests x q` tokens of a step, request-major. Request r owns KDA slots 1 + r*q .. 1 + r*q + q-1 (slot 0 is
the null slot of padding rows) and pages of its own, in an order that is not the storage order, as a server's would be.
With `dcp` shards position p of a context lies in shard p % dcp. Sizes are fixed at creation, so that CUDA graphs hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kgen.contract.op import Registry
from kgen.model.decoder.config import KDA, Config, sizes

CACHE_WIDTH = 576
TAPS = 3
CACHE_DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


@dataclass
class State:
    """`conv`, `s` by KDA layer; `cache` by (MLA layer, shard). `lengths` counts the rows in the cache by request."""

    q: int
    page: int
    dcp: int
    conv: dict[int, torch.Tensor]  # [slots, 3d, TAPS or q + 2]
    s: dict[int, torch.Tensor]  # [slots, heads, 128, 128]
    cache: dict[tuple[int, int], torch.Tensor]  # [blocks, page, 576]
    block_table: torch.Tensor  # i32 [requests, max_blocks]
    lengths: torch.Tensor  # i32 [requests]
    accepted: torch.Tensor  # i32 [requests], of the last verify step: 1..q
    active: torch.Tensor  # bool [requests]; the others are padding rows

    @property
    def requests(self) -> int:
        return int(self.lengths.shape[0])

    @property
    def capacity(self) -> int:
        """Positions that a request's pages hold, over all shards."""
        return int(self.block_table.shape[1]) * self.page * self.dcp

    def reset(self) -> None:
        """All sequences back to their start."""
        for tensor in (*self.conv.values(), *self.s.values(), *self.cache.values()):
            tensor.zero_()
        self.lengths.zero_()
        self.accepted.fill_(1)

    def slots(self) -> torch.Tensor:
        """KDA slots: i32 [requests], or [requests, q]; 0 for padding rows."""
        device = self.lengths.device
        first = 1 + self.q * torch.arange(self.requests, dtype=torch.int32, device=device)
        found = first[:, None] + torch.arange(self.q, dtype=torch.int32, device=device)
        found = torch.where(self.active[:, None], found, 0)
        return found[:, 0].contiguous() if self.q == 1 else found

    def positions(self) -> torch.Tensor:
        """Position of each new token in its context: i64 [requests * q], counted from 0."""
        new = torch.arange(self.q, device=self.lengths.device)
        return (self.lengths[:, None].long() + new).reshape(-1)

    def cache_slots(self, shard: int, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Where a row goes in a shard's cache: i64 [requests * n], -1 for nowhere.

        `positions` i64 [requests * n], request-major; without them the new tokens of a step (n = q).
        """
        position = self.positions() if positions is None else positions
        inside = position // self.dcp
        request = torch.arange(self.requests, device=position.device).repeat_interleave(
            position.shape[0] // self.requests
        )
        page = (inside // self.page).clamp_max(self.block_table.shape[1] - 1)
        block = self.block_table[request, page].long()
        slot = block * self.page + inside % self.page
        here = self.active[request] & (position % self.dcp == shard)
        return torch.where(here, slot, -1)

    def cached(self, layer: int, requests: slice, count: int) -> torch.Tensor:
        """The first `count` rows of some requests' contexts, over all shards: [requests, count, 576]."""
        position = torch.arange(count, device=self.block_table.device)
        inside = position // self.dcp
        block = self.block_table[requests][:, inside // self.page].long()
        slot = block * self.page + inside % self.page
        if self.dcp == 1:
            return self.cache[layer, 0].flatten(0, 1)[slot]
        rows = torch.stack([self.cache[layer, r].flatten(0, 1)[slot] for r in range(self.dcp)])
        return rows[position % self.dcp, :, position].transpose(0, 1)

    def request_lengths(self) -> torch.Tensor:
        """Rows of each request, this step's new tokens included: i32 [requests], 0 for padding."""
        return torch.where(self.active, self.lengths + self.q, 0).to(torch.int32)

    def advance(self, accepted: torch.Tensor) -> None:
        """Keep the first `accepted` (i32 [requests], 1..q) new tokens of each request, forget the others."""
        self.accepted.copy_(accepted)
        self.lengths.add_(torch.where(self.active, accepted, 0).to(torch.int32))


def new_state(
    config: Config,
    registry: Registry,
    requests: int,
    q: int,
    context: int,
    device: str | torch.device,
    dtype: torch.dtype | None = None,
) -> State:
    """Room for `context` positions a request. `dtype` (float64) replaces the dtypes of conv and cache states too."""
    core = sizes(registry.get("kda_core"), config.dims)
    heads, head = core["heads"], core["width"] // core["heads"]
    slots, taps = 1 + requests * q, TAPS if q == 1 else q + 2
    pages = _ceil(_ceil(context, config.dcp), config.page)
    cache_dtype = dtype or CACHE_DTYPES[dict(config.axes.get("mla_decode", {})).get("cache", "bf16")]
    state = State(
        q=q,
        page=config.page,
        dcp=config.dcp,
        conv={},
        s={},
        cache={},
        block_table=_scattered(requests, pages).to(device),
        lengths=torch.zeros(requests, dtype=torch.int32, device=device),
        accepted=torch.ones(requests, dtype=torch.int32, device=device),
        active=torch.ones(requests, dtype=torch.bool, device=device),
    )
    for i, layer in enumerate(config.layers):
        if layer.attention == KDA:
            shape = (slots, 3 * heads * head, taps)
            state.conv[i] = torch.zeros(shape, dtype=dtype or torch.bfloat16, device=device)
            state.s[i] = torch.zeros((slots, heads, head, head), dtype=dtype or torch.float32, device=device)
        else:
            for shard in range(config.dcp):
                shape = (requests * pages, config.page, CACHE_WIDTH)
                state.cache[i, shard] = torch.zeros(shape, dtype=cache_dtype, device=device)
    return state


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _scattered(requests: int, pages: int) -> torch.Tensor:
    """Each request's pages, spread over the storage by a fixed stride that no request shares."""
    total = requests * pages
    order = torch.randperm(total, generator=torch.Generator().manual_seed(total))
    return order.reshape(requests, pages).to(torch.int32)


def snapshot(state: State) -> Mapping[str, torch.Tensor]:
    """Copies of the recurrent states by name, for drift measurements."""
    return {f"layers.{i}.s": t.clone() for i, t in state.s.items()}
