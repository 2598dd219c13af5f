"""Sizes of the decode model: the real widths of one rank, on a slice of layers and of the vocabulary.

Covered: every width that an op of the registry sees. Not covered yet: attention layers, the dense first layer and the
quantised experts; their sizes join this table with their layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.ops.pack import ATTN_RES_SLOTS, HIDDEN, SHARED_WIDTH

CONV_TAPS = 4  # positions that the token mixer sees, this one included


@dataclass(frozen=True)
class ModelDims:
    """One model. `block` is the number of layers between two snapshots of the residual; the others are widths."""

    name: str
    hidden: int
    shared_width: int
    slots: int
    layers: int
    block: int
    vocab: int
    channels: int  # of the token mixer
    latent: int
    experts: int
    top_k: int
    expert_width: int

    def __post_init__(self) -> None:
        if self.finished_blocks(self.layers) > self.slots:
            raise ValueError(
                f"{self.name}: {self.layers} layers in blocks of {self.block} need more than {self.slots} slots"
            )

    def finished_blocks(self, layer: int) -> int:
        """Snapshots that exist when `layer` begins (its own not counted)."""
        return -(-layer // self.block)


def _model(name: str, **own: int) -> ModelDims:
    return ModelDims(name, HIDDEN[name], SHARED_WIDTH[name], ATTN_RES_SLOTS[name], **own)


# Six layers in blocks of three hold two snapshots, a reset in mid-stack and a mix over finished blocks; `nano` has the
# whole depth of its architecture. Latent and expert widths are one rank's shards; 16 experts stand for 896.
MODELS: Mapping[str, ModelDims] = {
    m.name: m
    for m in (
        _model(
            "k3-tp8", layers=6, block=3, vocab=4096, channels=896, latent=448, experts=16, top_k=4, expert_width=384
        ),
        _model(
            "k3-tp16", layers=6, block=3, vocab=4096, channels=448, latent=224, experts=16, top_k=4, expert_width=192
        ),
        _model("nano", layers=8, block=4, vocab=512, channels=64, latent=128, experts=16, top_k=4, expert_width=64),
    )
}


def model_dims(name: str) -> ModelDims:
    """Raises ValueError (one line) for dims without a model."""
    if name not in MODELS:
        raise ValueError(f"there is no decode model with dims {name!r}; known: {', '.join(MODELS)}")
    return MODELS[name]
