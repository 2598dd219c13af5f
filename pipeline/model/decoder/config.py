"""Which layers a decode model has, and how its ops are seated. Widths are the ops' own dims, never repeated here.

    slice-tp8, slice-tp16   the real widths of one rank on five layers: one of each kind, and a block boundary
    slice-tp1               the same with whole latent projections and no peers
    nano                    the whole architecture, small enough to train
    nano-random             nano's shape with drawn weights: needs no checkpoint

A rank's partial sums meet zeros where peers would add theirs: the mailbox slots of the other ranks hold zeros, so that
every op runs at its real shape on one device. Not covered: the vision part, drafts (any function drafts).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kgen.contract.op import Op, Registry

KDA, MLA, DENSE, MOE = "kda", "mla", "dense", "moe"
FUSED_OPROJ = "oproj_allreduce_residual"


@dataclass(frozen=True)
class Layer:
    attention: str  # KDA or MLA
    ffn: str  # DENSE or MOE


@dataclass(frozen=True)
class Config:
    """One model. `block`: layers between two snapshots of the residual. `dims`: the ops' dims name.

    `axes` chooses compile-time variants by op name (`cache`, `acts`, `class`, ...); `fused_oproj` seats the op that
    joins output projection, sum over ranks and residual mix; `dcp` > 1 splits each context over that many shards.
    """

    name: str
    dims: str
    layers: tuple[Layer, ...]
    block: int
    page: int = 64
    dcp: int = 1
    fused_oproj: bool = False
    axes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    trained: bool = False  # weights are a committed file, not drawn from a seed

    def finished_blocks(self, layer: int) -> int:
        """Snapshots that exist when `layer` begins (its own not counted)."""
        return -(-layer // self.block)

    def opens_block(self, layer: int) -> bool:
        return layer % self.block == 0


def _layers(text: str) -> tuple[Layer, ...]:
    """Two letters a layer: K or M, then d or m."""
    attention, ffn = {"K": KDA, "M": MLA}, {"d": DENSE, "m": MOE}
    return tuple(Layer(attention[pair[0]], ffn[pair[1]]) for pair in text.split())


SLICE, NANO = _layers("Kd Km Mm Km Mm"), _layers("Kd Km Km Mm Km Km Km Mm")

CONFIGS: Mapping[str, Config] = {
    c.name: c
    for c in (
        Config("slice-tp8", "k3-tp8", SLICE, block=3),
        Config("slice-tp16", "k3-tp16", SLICE, block=3),
        Config("slice-tp1", "vllm-tp1", SLICE, block=3),
        Config("nano", "nano", NANO, block=4, trained=True),
        Config("nano-random", "nano", NANO, block=4),
    )
}


def config(name: str, **changes: object) -> Config:
    """A known configuration with some fields changed. Raises ValueError (one line) for an unknown name."""
    if name not in CONFIGS:
        raise ValueError(f"there is no decode model {name!r}; known: {', '.join(CONFIGS)}")
    return replace(CONFIGS[name], **changes)  # type: ignore[arg-type]


def sizes(op: Op, dims: str) -> Mapping[str, int]:
    """An op's sizes at a dims name."""
    return op.dims[op.own_name(dims)]


def complaints(config: Config, registry: Registry) -> list[str]:
    """Everything that makes a configuration impossible; empty when it can be built."""
    found: list[str] = []
    if not config.layers:
        found.append("no layers")
    for number, layer in enumerate(config.layers):
        if layer.attention not in (KDA, MLA) or layer.ffn not in (DENSE, MOE):
            found.append(f"layer {number}: unknown kind {layer.attention}/{layer.ffn}")
    if config.block < 1:
        found.append(f"block {config.block} is not positive")
    elif (need := config.finished_blocks(len(config.layers))) > (
        slots := sizes(registry.get("attn_res"), config.dims)["slots"]
    ):
        found.append(f"{len(config.layers)} layers in blocks of {config.block} need {need} slots, there are {slots}")
    if config.page < 1:
        found.append(f"page {config.page} is not positive")
    if config.dcp < 1:
        found.append(f"dcp {config.dcp} is not positive")
    for name, chosen in config.axes.items():
        try:
            registry.get(name).problem(config.dims, 1, "", chosen)
        except ValueError as error:
            found.append(str(error))
    return found
