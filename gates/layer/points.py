"""What is measured: a setting (widths of one rank), a kind of layer, a token count, a context.

A setting is a decode model's dims with drawn weights, by the name without the pack's: the peers' part of collectives
is left out on every side. A layer is one of the model's own in the middle of a residual block, with a MoE behind its
attention. Recurrent attention does not depend on the context: its points have context 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kgen.model.decoder.config import CONFIGS, KDA, MLA, MOE, Config
from kgen.ops import PACK
from kgen.records.codec import OPTIONAL

KINDS = (KDA, MLA)
TOKENS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 4096, 32768)
ANY_CONTEXT = 0
REPETITIONS = 40
EVEN, SKEWED = "even", "skewed"  # routing: every expert alike, or as the drawn model's bias has it


@dataclass(frozen=True)
class Point:
    """`context`: rows that each request attends to, the new one included."""

    setting: str
    kind: str
    tokens: int
    context: int

    @property
    def key(self) -> str:
        return f"{self.setting}/{self.kind}/t{self.tokens}/c{self.context}"


@dataclass(frozen=True)
class Job:
    """One point and how it is measured. `kernels`: a kernel set's folder, "" for those that serving looks into.

    `compiled`: also with torch.compile, where it works. `each`: also without each promoted op in turn. `state`: of the
    set's manifest, so that another promotion is another job. `prefetch`: schedules of weights pulled into L2, the
    chain's own first. `trace`: sha256 of a recorded routing trace, whose words are then in `routing`.
    """

    SCHEMA: ClassVar[str] = "kgen.layer-job/2"
    point: Point
    device: str = "cuda"
    arch: str = ""
    kernels: str = ""
    repetitions: int = REPETITIONS
    seed: int = 1
    routing: str = EVEN
    compiled: bool = True
    each: bool = False
    state: str = ""
    prefetch: tuple[str, ...] = ()
    trace: str = field(default="", metadata=OPTIONAL)


def settings() -> dict[str, Config]:
    """Setting -> the decode model that has its widths."""
    return {c.dims.removeprefix(f"{PACK.name}-"): c for c in CONFIGS.values() if not c.trained}


def default_settings(device: str) -> list[str]:
    """All real widths on a GPU; on a CPU the small model, on which a layer is run and not timed for anybody."""
    return [name for name, config in settings().items() if (config.dims == PACK.small) == (device == "cpu")]


def model_of(setting: str) -> Config:
    """Raises ValueError (one line) for an unknown setting."""
    known = settings()
    if setting not in known:
        raise ValueError(f"there is no setting {setting!r}; known: {', '.join(known)}")
    return known[setting]


def layer_of(config: Config, kind: str) -> int:
    """The first layer of this kind with a MoE that opens no residual block. Raises ValueError (one line)."""
    for number, layer in enumerate(config.layers):
        if layer.attention == kind and layer.ffn == MOE and not config.opens_block(number):
            return number
    raise ValueError(f"{config.name} has no layer of kind {kind!r}; kinds: {', '.join(KINDS)}")


def points(
    chosen: Sequence[str],
    kinds: Sequence[str] = KINDS,
    tokens: Sequence[int] = TOKENS,
    contexts: Sequence[int] = CONTEXTS,
) -> list[Point]:
    """In the order in which they are measured. Raises ValueError (one line) for what there is not."""
    for setting in chosen:
        for kind in kinds:
            layer_of(model_of(setting), kind)
    if wrong := [n for n in tokens if n not in PACK.bins]:
        raise ValueError(f"{wrong[0]} is not a token bin; bins: {', '.join(map(str, PACK.bins))}")
    if wrong := [n for n in contexts if n < 1]:
        raise ValueError(f"context {wrong[0]} is not positive")
    return [
        Point(setting, kind, n, context)
        for setting in chosen
        for kind in kinds
        for n in tokens
        for context in ((ANY_CONTEXT,) if kind == KDA else contexts)
    ]
