"""The attention-residual mix and its input families, shared by the ops that end in it.

    V = [blocks[:, 0..nb-1], p];  l_s = (sum_c V_s[c] w_norm[c] w_query[c]) rsqrt(mean_c V_s[c]^2 + eps)
    a = softmax(l);  mix = sum_s a_s V_s;  out = bf16(mix rsqrt(mean(mix^2) + eps_out) w_out)

`mixed` computes in the dtype of p: float64 for references, float32 for stock. `draw` and `depth` make what the input
families have in common. Not here: where p comes from, which differs by op.
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from kgen.contract.families import normal, rows
from kgen.contract.op import Family, Values
from kgen.contract.quant import round_bf16
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops.pack import RMS_EPS

Rounding = Callable[[torch.Tensor], torch.Tensor]
GROWN = 30.0  # rms of a row in the last layers, in units of the first
GROWING_STEPS = 64
DEPTHS = (1, 2, 3, 5, 6, 7)  # finished blocks that get a family of their own, besides none, half and all of 8

VECTORS = (
    TensorSpec("w_norm", "bf16", ("hidden",), Role.WEIGHT, "norm weights of the sources"),
    TensorSpec("w_query", "bf16", ("hidden",), Role.WEIGHT, "query vector"),
    TensorSpec("w_out", "bf16", ("hidden",), Role.WEIGHT, "norm weights of the result"),
)
NB = ScalarSpec("nb", "i32", "finished blocks to mix, 0..slots; slots from nb on may hold anything", 1, other=0)
EPSILONS = (
    ScalarSpec("eps", "f32", "added to the mean square of a source", RMS_EPS, other=1.0),
    ScalarSpec("eps_out", "f32", "added to the mean square of the mix", RMS_EPS, other=1.0),
)
DEPTH_FAMILIES = (
    Family("no_blocks", "nb = 0: the mix is the row itself"),
    *(Family(f"nb{n}", f"nb = {n}, at most all") for n in DEPTHS),
    Family("all_blocks", "every slot mixed"),
)
SWEPT_DEPTHS = tuple(Family(f"nb{n}", f"nb = {n}, no snapshot") for n in (0, 2, 6, 8))  # nb = 4: the plain family


def tensor(values: Values, name: str) -> torch.Tensor:
    value = values[name]
    assert isinstance(value, torch.Tensor)
    return value


def nearest(x: torch.Tensor) -> torch.Tensor:
    """x rounded once to bf16 values, in its own dtype (float64 or float32)."""
    return round_bf16(x) if x.dtype is torch.float64 else x.to(torch.bfloat16).to(x.dtype)


def unrounded(x: torch.Tensor) -> torch.Tensor:
    return x


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Element by element, for bf16: NaN equals itself, -0 is not +0."""
    return a.contiguous().view(torch.int16) == b.contiguous().view(torch.int16)


def mixed(p: torch.Tensor, values: Values, round_mix: Rounding = unrounded) -> torch.Tensor:
    """out [tokens, hidden] before its rounding, in the dtype of p [tokens, hidden]; slots from nb on are not read."""
    w_norm, w_query, w_out = (tensor(values, spec.name) for spec in VECTORS)
    finished = tensor(values, "blocks")[:, : int(values["nb"])].to(p.dtype)
    sources = torch.cat([finished, p[:, None]], dim=1)
    weight = w_norm * w_query.to(p.dtype)
    logits = F.rms_norm(sources, weight.shape, weight, float(values["eps"])).sum(-1)
    mix = round_mix((torch.softmax(logits, dim=1)[..., None] * sources).sum(1))
    return F.rms_norm(mix, w_out.shape, w_out.to(p.dtype), float(values["eps_out"]))


def draw(size: Mapping[str, int], family: str, gen: torch.Generator) -> dict[str, torch.Tensor]:
    """float32 prefix, blocks and weight vectors of a family."""
    tokens, hidden, slots = size["tokens"], size["hidden"], size["slots"]
    blocks = rows((tokens * slots, hidden), family, gen).reshape(tokens, slots, hidden)
    if family == "growing":
        blocks *= torch.linspace(1.0, GROWN, slots, device=gen.device)[:, None]
    if family == "unused_inf":
        blocks[:, depth(family, slots) :] = torch.inf
    return {
        "prefix": rows((tokens, hidden), family, gen),
        "blocks": blocks,
        "w_norm": 1 + normal((hidden,), gen, 0.25),
        "w_query": normal((hidden,), gen, 2 * hidden**-0.5),  # scores of a few units: no source drowns the others
        "w_out": 1 + normal((hidden,), gen, 0.1),
    }


def depth(family: str, slots: int) -> int:
    """Finished blocks of a family."""
    if family.startswith("nb"):
        return min(int(family[2:].split("_")[0]), slots)
    return {"no_blocks": 0, "all_blocks": slots}.get(family, slots // 2)


def steps_to_grow() -> float:
    """The rms of independent rows that take a sum from rms 1 to GROWN in GROWING_STEPS."""
    return math.sqrt((GROWN**2 - 1) / GROWING_STEPS)
