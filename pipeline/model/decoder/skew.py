"""How uneven a routing is: the figures that say what experts a kernel has to read."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Skew:
    """`top_tenth`: share of all choices that the most chosen tenth of the experts (at least one) gets, about a tenth
    when even; `distinct`: mean number of different experts a step reads; `even`: the same for uniform choices."""

    top_tenth: float
    distinct: float
    even: float


def measure(ids: torch.Tensor, experts: int) -> Skew:
    """ids int [steps, tokens, top_k]; negative ids are padding."""
    flat = ids.reshape(-1)
    counts = torch.bincount(flat[flat >= 0].long(), minlength=experts).double()
    tenth = max(1, experts // 10)
    top = float(counts.sort(descending=True).values[:tenth].sum() / counts.sum().clamp_min(1))
    distinct = [len(set(step.reshape(-1).tolist()) - {-1}) for step in ids]
    tokens, top_k = ids.shape[1], ids.shape[2]
    even = experts * (1 - (1 - top_k / experts) ** tokens)
    return Skew(top, sum(distinct) / max(1, len(distinct)), even)
