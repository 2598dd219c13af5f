"""Which threads a launch has: CTAs in clusters, waves of CTAs that are resident together, special registers."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.tokens import PtxError

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]

WARP = 32
SMS, MAX_THREADS_PER_SM, MAX_CTAS_PER_SM, SHARED_PER_SM = 132, 2048, 32, 233472  # of the machine that is played
MAX_SHARED = 232448
WAVE_LANES = 1 << 16  # lanes that run as one vector where CTAs need not be resident together
MAX_CTAS = 1 << 20


@dataclass(frozen=True)
class Geometry:
    grid: Triple
    block: Triple
    cluster: Triple
    shared: int  # bytes, static and dynamic

    def __post_init__(self) -> None:
        if min(*self.grid, *self.block, *self.cluster) < 1 or self.threads > 1024 or self.ctas > MAX_CTAS:
            raise PtxError(0, f"a launch of grid {self.grid}, block {self.block}, cluster {self.cluster} cannot run")
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)) or self.cluster_size > 16:
            raise PtxError(0, f"grid {self.grid} is no multiple of cluster {self.cluster}")
        if self.shared > MAX_SHARED:
            raise PtxError(0, f"{self.shared} bytes of shared memory exceed {MAX_SHARED}")

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    @property
    def ctas(self) -> int:
        return math.prod(self.grid)

    @property
    def cluster_size(self) -> int:
        return math.prod(self.cluster)

    def residents(self) -> int:
        """CTAs that the machine holds at a time, in whole clusters."""
        per_sm = min(MAX_THREADS_PER_SM // (self.warps * WARP), MAX_CTAS_PER_SM)
        per_sm = max(min(per_sm, SHARED_PER_SM // max(self.shared + 1024, 1)), 1)
        return max(SMS * per_sm // self.cluster_size, 1) * self.cluster_size

    def waves(self, together: bool, rng: np.random.Generator | None) -> list[Array]:
        """Linear CTA numbers of each wave, cluster by cluster. `together`: as many as the machine holds."""
        x, y, z = np.unravel_index(np.arange(self.ctas), self.grid, order="F")
        cx, cy, cz = self.cluster
        counts = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        home = (x // cx) + counts[0] * ((y // cy) + counts[1] * (z // cz))
        rank = (x % cx) + cx * ((y % cy) + cy * (z % cz))
        order = np.lexsort((rank, home)).reshape(-1, self.cluster_size)
        if rng is not None:
            order = rng.permutation(order)
        fit = max(WAVE_LANES // (self.warps * WARP * self.cluster_size), 1) * self.cluster_size
        size = self.residents() if together else min(fit, max(self.residents(), self.cluster_size))
        per = max(size // self.cluster_size, 1)
        return [order[i : i + per].reshape(-1) for i in range(0, len(order), per)]

    def block_of(self, cta: int) -> Triple:
        x, y, z = np.unravel_index(cta, self.grid, order="F")
        return int(x), int(y), int(z)

    def thread_of(self, number: int) -> Triple:
        x, y, z = np.unravel_index(min(number, self.threads - 1), self.block, order="F")
        return int(x), int(y), int(z)


class Specials:
    """Special registers of a wave, one uint32 (or uint64) array over its lanes each, made when first read."""

    def __init__(self, geometry: Geometry, ctas: Array) -> None:
        self._g, self._ctas = geometry, ctas
        self._made: dict[str, Array] = {}

    def get(self, name: str) -> Array | None:
        """None for a register that is not known, or that no vector of the wave describes (clocks)."""
        if name not in self._made:
            made = self._make(name)
            if made is None:
                return None
            self._made[name] = made
        return self._made[name]

    def _lanes(self, per_cta: Array) -> Array:
        return np.repeat(per_cta.astype(np.uint32), self._g.warps * WARP)

    def _axis(self, shape: Triple, numbers: Array, axis: str) -> Array:
        return np.unravel_index(numbers, shape, order="F")["xyz".index(axis)]

    def _make(self, name: str) -> Array | None:
        g, ctas = self._g, self._ctas
        per = g.warps * WARP
        whole = len(ctas) * per
        head, _, axis = name[1:].partition(".")
        local = np.arange(per)
        if axis and axis not in "xyz":
            return None
        sizes = {"ntid": g.block, "nctaid": g.grid, "cluster_nctaid": g.cluster}
        if head == "nclusterid":
            sizes[head] = tuple(a // b for a, b in zip(g.grid, g.cluster, strict=True))  # type: ignore[assignment]
        if axis and head in sizes:
            return np.full(whole, sizes[head]["xyz".index(axis)], np.uint32)
        if axis and head == "tid":
            inside = np.minimum(local, g.threads - 1)
            return np.tile(self._axis(g.block, inside, axis).astype(np.uint32), len(ctas))
        if axis and head in ("ctaid", "cluster_ctaid", "clusterid"):
            at = self._axis(g.grid, ctas, axis)
            size = g.cluster["xyz".index(axis)]
            return self._lanes(at if head == "ctaid" else at % size if head == "cluster_ctaid" else at // size)
        return self._scalar(head, local, whole)

    def _scalar(self, head: str, local: Array, whole: int) -> Array | None:
        g, ctas = self._g, self._ctas
        lane = (local % WARP).astype(np.uint32)
        masks = {
            "lanemask_eq": np.uint32(1) << lane,
            "lanemask_lt": (np.uint32(1) << lane) - np.uint32(1),
            "lanemask_le": (np.uint32(2) << lane) - np.uint32(1),
            "lanemask_gt": ~((np.uint32(2) << lane) - np.uint32(1)),
            "lanemask_ge": ~((np.uint32(1) << lane) - np.uint32(1)),
            "laneid": lane,
            "warpid": (local // WARP).astype(np.uint32),
        }
        if head in masks:
            return np.tile(masks[head].astype(np.uint32), len(ctas))
        if head == "cluster_ctarank":
            return self._lanes(np.arange(len(ctas)) % g.cluster_size)
        fixed = {
            "cluster_nctarank": g.cluster_size,
            "nwarpid": g.warps,
            "nsmid": SMS,
            "dynamic_smem_size": g.shared,
            "total_smem_size": g.shared,
            "is_explicit_cluster": int(g.cluster_size > 1),
        }
        if head == "smid":
            return self._lanes(np.arange(len(ctas)) % SMS)
        return np.full(whole, fixed[head], np.uint32) if head in fixed else None
