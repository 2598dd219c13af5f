"""One optimiser step, the schedule it follows, and the accuracy on held-out items.

Progress is the share of the training that is done, 0..1: everything that changes over time depends on it alone, so a
run of minutes and a run of steps follow the same course.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kgen.model.nano.batches import Batch
from kgen.model.nano.trainable import NanoModel
from kgen.model.nano.vocabulary import PAD

WARM_UP = 0.02
LAST_RATE = 0.02  # of the peak
QUANTISE_FROM = 0.3  # expert weights are MXFP4 from here on
BALANCE_RATE = 2e-3  # of the routing bias, per step, falling to 0
CLIP = 1.0
BETAS = (0.9, 0.95)
DECAY = 0.02


def rate_at(progress: float, peak: float) -> float:
    """Linear warm-up, then a cosine down to LAST_RATE of the peak."""
    if progress < WARM_UP:
        return peak * (progress / WARM_UP + 1e-3)
    done = min(1.0, (progress - WARM_UP) / (1 - WARM_UP))
    return peak * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class Rates:
    """What changes from step to step, as scalars on the device: a captured step reads them where they lie."""

    learning: torch.Tensor
    balance: torch.Tensor

    @classmethod
    def on(cls, device: torch.device | str) -> "Rates":
        return cls(torch.zeros((), device=device), torch.zeros((), device=device))

    def set(self, values: tuple[float, float]) -> None:
        self.learning.fill_(values[0])
        self.balance.fill_(values[1])


def rates_at(progress: float, peak: float) -> tuple[float, float]:
    """Learning rate, and the step of the routing bias."""
    return rate_at(progress, peak), BALANCE_RATE * (1 - progress)


def optimiser(model: NanoModel, rate: float) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors, convolutions and the embedding do not. On CUDA a graph can hold its steps."""
    decay: list[torch.nn.Parameter] = []
    free: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        plain = parameter.dim() < 2 or name == "embed" or name.endswith("conv_w")
        (free if plain else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": DECAY}, {"params": free, "weight_decay": 0.0}]
    cuda = model.embed.is_cuda
    start = torch.tensor(rate, device=model.embed.device) if cuda else rate
    return torch.optim.AdamW(groups, lr=start, betas=BETAS, fused=True, capturable=cuda)


def train_step(
    model: NanoModel, optimiser: torch.optim.Optimizer, batch: Batch, progress: float, rate: float
) -> torch.Tensor:
    """One update; the mean loss of the answer tokens, still on the device."""
    rates = Rates.on(model.embed.device)
    rates.set(rates_at(progress, rate))
    return step_on(model, optimiser, batch, rates, quantise_at(progress))


def quantise_at(progress: float) -> bool:
    """Whether expert weights are rounded to MXFP4 by now."""
    return progress >= QUANTISE_FROM


def step_on(
    model: NanoModel, optimiser: torch.optim.Optimizer, batch: Batch, rates: Rates, quantise: bool
) -> torch.Tensor:
    """One update at the rates on the device; never waits for it. The mean loss of the answer tokens."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(rates.learning)
        else:
            group["lr"] = float(rates.learning)
    rows, chosen = model(batch.ids, quantise=quantise)
    answers = rows.flatten(0, 1).index_select(0, batch.positions)
    loss = F.cross_entropy(model.head(answers), batch.targets)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()
    _balance(model, chosen, batch.ids != PAD, rates.balance)
    return loss.detach()


@torch.no_grad()
def _balance(model: NanoModel, chosen: torch.Tensor, real: torch.Tensor, rate: torch.Tensor) -> None:
    """Raise the routing bias of experts that got less than their share, lower that of the others."""
    load = (chosen & real[..., None]).sum((1, 2)).float()  # [moe layers, experts]
    move = rate * torch.sign(load.mean(-1, keepdim=True) - load)
    for moe, own in zip(model.moes(), move, strict=True):
        moe.bias += own


@torch.no_grad()
def accuracy(model: NanoModel, batches: Sequence[Batch], quantise: bool) -> float:
    """Share of items whose whole answer is the model's first choice, given the right answer so far.

    Equals the share that greedy decoding gets right: up to its first mistake greedy decoding sees the same text.
    """
    right = total = 0
    for batch in batches:
        rows, _ = model(batch.ids, quantise=quantise)
        said = model.head(rows.flatten(0, 1).index_select(0, batch.positions)).argmax(-1)
        wrong = torch.zeros(batch.ids.shape[0], device=said.device)
        wrong.index_add_(0, batch.owners, (said != batch.targets).float())
        right += int((wrong == 0).sum())
        total += batch.ids.shape[0]
    return right / total


def finite(losses: Iterable[torch.Tensor]) -> float:
    """Mean of losses; RuntimeError if one is no number."""
    mean = float(torch.stack(list(losses)).mean())
    if not math.isfinite(mean):
        raise RuntimeError("the loss is no longer a number: resume from the last state with a lower --rate")
    return mean
