"""The same model in float64 without roundings: what every arithmetic is measured against."""

import torch

from kgen.contract.op import Registry
from kgen.model.bind import ReferenceBinder
from kgen.model.dims import ModelDims
from kgen.model.session import Session
from kgen.model.step import DecodeStep
from kgen.model.weights import ModelWeights, cast


class Reference:
    """Holds one float64 copy of the weights; a bin needs none of its own, rows do not depend on each other."""

    def __init__(self, dims: ModelDims, weights: ModelWeights, arch: str, registry: Registry) -> None:
        self._dims, self._arch, self._registry = dims, arch, registry
        self._weights = cast(weights, torch.float64)

    def session(self, tokens: int, count: int) -> Session:
        """`count` sequences at a token bin, in float64."""
        step = DecodeStep(self._dims, self._weights, tokens, self._arch, ReferenceBinder(), self._registry)
        return Session(step, count)
