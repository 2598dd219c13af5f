"""Small decode models: nano's shape with drawn weights, as an engine runs it or in float64 without roundings."""

from functools import cache

import torch

from kgen.model.bind import ReferenceBinder, StockBinder
from kgen.model.decoder.config import Config, config
from kgen.model.decoder.draw import draw
from kgen.model.decoder.session import Session
from kgen.model.decoder.step import DecodeStep
from kgen.model.decoder.weights import Weights
from kgen.ops import REGISTRY

CONTEXT = 192
VOCAB = 512


@cache
def weights(seed: int = 1) -> Weights:
    """The same drawn weights for every variant of the nano shape."""
    return draw(config("nano-random"), REGISTRY, seed, "cpu")


def exact(found: Weights) -> Weights:
    """The weights of a float64 model: the embedding decides the arithmetic."""
    return Weights({**found.tensors, "embed": found["embed"].double()})


def session(chosen: Config, rows: int = 4, count: int = 3, q: int = 1, *, wide: bool = True) -> Session:
    """`wide`: in float64; else bf16 as the stock ops run it."""
    own = exact(weights()) if wide else weights()
    binder = ReferenceBinder() if wide else StockBinder()
    return Session(DecodeStep(chosen, own, rows, q, "", binder, REGISTRY), count, CONTEXT)


def tokens(steps: int, count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCAB, (steps, count), generator=torch.Generator().manual_seed(seed))


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative L2 of the whole."""
    return float((got.double() - want.double()).norm() / want.double().norm())
