"""Sizes of the models that train here: `nano`, which is kept, and two reduced ones for pilots and tests.

The layer kinds follow the model's own pattern: every fourth layer attends (MLA), the others carry a state (KDA); layer
0 has a dense MLP, the others a mixture of experts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

ROW_MULTIPLE = 16  # rows of a fused input projection are padded to it
MLA_PERIOD = 4


@dataclass(frozen=True)
class Shape:
    """Widths in elements. `rope` is the shared key that is never rotated; nope and v widths equal `head`."""

    name: str
    hidden: int
    vocab: int
    layers: int
    block: int  # layers between two snapshots of the residual
    heads: int
    head: int
    conv: int
    gate_rank: int  # of the decay gate
    q_lora: int
    kv_lora: int
    rope: int
    experts: int
    top_k: int
    latent: int
    expert: int
    shared: int
    dense: int

    def __post_init__(self) -> None:
        if self.latent % 32 or self.expert % 32:
            raise ValueError(
                f"{self.name}: latent {self.latent} and expert {self.expert} must be multiples of 32 (MXFP4)"
            )
        if not 0 < self.top_k <= self.experts:
            raise ValueError(f"{self.name}: top_k {self.top_k} must be 1..{self.experts}")

    @property
    def width(self) -> int:
        """All heads together."""
        return self.heads * self.head

    @property
    def kda_rows(self) -> int:
        """q, k, v, g, f_a, beta, padded."""
        rows = 4 * self.width + self.gate_rank + self.heads
        return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE

    @property
    def mla_rows(self) -> int:
        """q_a, kv, k_pe, gate."""
        return self.q_lora + self.kv_lora + self.rope + self.width

    @property
    def query(self) -> int:
        """One head's query: nope, then the part for the shared key."""
        return self.head + self.rope

    def is_mla(self, layer: int) -> bool:
        return (layer + 1) % MLA_PERIOD == 0

    def finished_blocks(self, layer: int) -> int:
        """Snapshots that exist when `layer` begins (its own not counted)."""
        return -(-layer // self.block)

    def text(self) -> Mapping[str, str]:
        """All sizes as strings, as a safetensors header keeps them."""
        return {name: str(value) for name, value in asdict(self).items()}


NANO = Shape(
    name="nano",
    hidden=256,
    vocab=512,
    layers=8,
    block=4,
    heads=2,
    head=128,
    conv=4,
    gate_rank=128,
    q_lora=128,
    kv_lora=512,
    rope=64,
    experts=16,
    top_k=4,
    latent=128,
    expert=64,
    shared=128,
    dense=512,
)
# Same parts and layer pattern, small enough to learn on a CPU core within minutes.
PILOT = Shape(
    name="pilot",
    hidden=64,
    vocab=512,
    layers=4,
    block=2,
    heads=2,
    head=16,
    conv=4,
    gate_rank=16,
    q_lora=32,
    kv_lora=32,
    rope=8,
    experts=4,
    top_k=2,
    latent=32,
    expert=32,
    shared=32,
    dense=128,
)
TINY = Shape(
    name="tiny",
    hidden=32,
    vocab=512,
    layers=4,
    block=2,
    heads=2,
    head=8,
    conv=4,
    gate_rank=8,
    q_lora=16,
    kv_lora=16,
    rope=4,
    experts=4,
    top_k=2,
    latent=32,
    expert=32,
    shared=16,
    dense=32,
)
SHAPES: Mapping[str, Shape] = {s.name: s for s in (NANO, PILOT, TINY)}
