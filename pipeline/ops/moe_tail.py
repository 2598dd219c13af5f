"""moe_tail: the end of the MoE block: latent sum over ranks, norm, up-projection shard, shared-expert sum, add.

    L     = bf16(sum_r parts[r])                          float32 in rank order 0..ranks-1, one rounding
    n     = bf16(L rsqrt(mean(L^2) + eps) gamma)          mean and product in float32 or better
    up    = bf16(n @ w_up.T)                              this rank's columns of hidden
    rs    = bf16(sum_r shared[r])                         float32 in rank order, one rounding
    delta = bf16(up + rs)

One GPU: the `ranks` slots of parts and shared stand for what the ranks have sent, and this rank owns `columns` of the
hidden size. With several GPUs the same slots are the mailboxes that peers write into, and delta is what this rank then
sends to all; waiting, re-arming and sending belong to that form and are not part of this op.

The two sums run in rank order in float32, so that every rank gets the same bits (ranks must agree on routing). A
mailbox cannot hold -0, which marks an empty slot: senders turn it into +0. So sums start from +0, a -0 in parts or
shared counts as +0, and the sign of a zero in delta is free.

Hard rules: a token without latent (all parts zero) has delta = rs bit for bit but for a zero's sign. Not covered: the
weighted sum over slots (moe_experts), the collective itself.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F

from kgen.contract import quant
from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.quant import round_bf16
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import dims_moe
from kgen.ops.dims_moe import LATENT, RANKS
from kgen.ops.pack import HIDDEN, PACK, RMS_EPS
from kgen.records import Problem

Compile = Callable[..., Callable[..., object]]
WHOLE = "vllm-tp1"  # one process: one rank, all columns
SWAMPED = 2.0**20  # what float32 has added to it loses bits, so that the order of ranks shows
LEFT = 2.0**-6  # what cancellation leaves


def _in_order(slots: torch.Tensor) -> torch.Tensor:
    """float32 sum over the first dimension, in order, from +0."""
    if slots.is_cuda and not torch.compiler.is_compiling():
        return slots.float().cumsum(0)[-1]  # one thread a column goes down the rows; on a CPU it would add in float64
    total = torch.zeros_like(slots[0], dtype=torch.float32)
    for slot in slots:
        total = total + slot  # in float32, whatever slot is
    return total


def _normed(parts: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """bf16 [tokens, latent] from bf16 [ranks, tokens, latent]; float32 inside."""
    latent = _in_order(parts).to(torch.bfloat16).float()
    return F.rms_norm(latent, gamma.shape, gamma.float(), eps).to(torch.bfloat16)


def _added(up: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """bf16 [tokens, columns]."""
    return up + _in_order(shared).to(torch.bfloat16)


class MoeTail(Op):
    name: ClassVar = "moe_tail"
    title: ClassVar = "MoE tail: latent sum, norm, up-projection shard, shared-expert sum, add"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {
        **{d: {"ranks": RANKS[d], "latent": LATENT[d], "columns": HIDDEN[d] // RANKS[d]} for d in LATENT},
        WHOLE: {"ranks": 1, "latent": LATENT["k3-tp8"], "columns": HIDDEN["k3-tp8"]},
    }
    tensors: ClassVar = (
        TensorSpec("parts", "bf16", ("ranks", "tokens", "latent"), Role.IN, "routed partial sums, by sender"),
        TensorSpec("shared", "bf16", ("ranks", "tokens", "columns"), Role.IN, "shared-expert partials of own columns"),
        TensorSpec("gamma", "bf16", ("latent",), Role.WEIGHT, "norm weights"),
        TensorSpec("w_up", "bf16", ("columns", "latent"), Role.WEIGHT, "up-projection rows of own columns"),
        TensorSpec("delta", "bf16", ("tokens", "columns"), Role.OUT, "own columns of what the block adds"),
    )
    scalars: ClassVar = (ScalarSpec("eps", "f32", "added to the mean square of the latent", RMS_EPS, other=1.0),)
    families: ClassVar = (
        Family("normal", "unit normal partials"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_latents", "every other token without latent: eps alone in the norm; shared as in rank_order"),
        Family("zero_rows", "every other token zero in all slots"),
        Family("tiny", "partials times 2^-40: eps decides the norm"),
        Family("large", "partials times 2^10"),
        Family("signed_zero", "half of the values are -0"),
        Family("cancelling", "neighbouring ranks cancel but for a sixty-fourth"),
        Family("rank_order", "the last rank takes back 2^20 times what the first sent: float32 sums tell the order"),
        Family("growing", "magnitudes double from rank to rank and from token to token, 2^-8 to 2^8"),
    )
    floor: ClassVar = 4e-3
    shared: ClassVar = (quant, dims_moe)
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("parts", "shared")

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        ranks, tokens, latent, columns = (size[n] for n in ("ranks", "tokens", "latent", "columns"))
        parts = _slots((ranks, tokens, latent), family, gen)
        shared = _slots((ranks, tokens, columns), "rank_order" if family == "zero_latents" else family, gen)
        values = {
            "parts": parts,
            "shared": shared,
            "gamma": 1 + normal((latent,), gen, 0.1),
            "w_up": normal((columns, latent), gen, latent**-0.5),
        }
        return {**{k: v.to(torch.bfloat16) for k, v in values.items()}, "eps": RMS_EPS}

    def stock(self, problem: Problem, compile: Compile | None = None) -> StockFn:
        def fused(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            return compile(f, dynamic=False) if compile else f  # type: ignore[return-value]

        normed, added = fused(_normed), fused(_added)

        def run(values: Values) -> dict[str, torch.Tensor]:
            n = normed(values["parts"], values["gamma"], values["eps"])
            return {"delta": added(F.linear(n, values["w_up"]), values["shared"])}  # type: ignore[arg-type]

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        """The rounded one keeps the float32 sums in rank order, which are part of the contract."""

        def r(x: torch.Tensor) -> torch.Tensor:
            return round_bf16(x) if rounded else x

        parts, shared, gamma, w_up = (values[n] for n in ("parts", "shared", "gamma", "w_up"))
        latent, own = (
            round_bf16(_in_order(t)).double() if rounded else t.double().sum(0)  # type: ignore[arg-type,union-attr]
            for t in (parts, shared)
        )
        scale = torch.rsqrt(latent.square().mean(-1, keepdim=True) + float(values["eps"]))
        n = r(latent * scale * gamma.double())  # type: ignore[union-attr]
        return {"delta": r(r(n @ w_up.double().T) + own)}  # type: ignore[union-attr]

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """delta of a token without latent is the sum of shared in rank order, rounded once."""
        parts, shared = values["parts"], values["shared"]
        bare = (parts == 0).flatten(2).all(-1).all(0)  # type: ignore[union-attr]
        want = _in_order(shared).to(torch.bfloat16)  # type: ignore[arg-type]
        if bool((got["delta"].to(want.device)[bare] != want[bare]).any()):
            return ["delta of a token without latent is not the sum of shared in rank order, rounded once"]
        return []

    def cost(self, problem: Problem) -> Cost:
        """Reads every rank's slots, as one GPU that holds them must."""
        s = self.sizes(problem)
        weights = s["columns"] * s["latent"]
        moved = s["tokens"] * (s["ranks"] * (s["latent"] + s["columns"]) + s["columns"])
        return Cost(bytes=2 * (weights + s["latent"] + moved), flops=2 * s["tokens"] * weights)


def _slots(shape: tuple[int, int, int], family: str, gen: torch.Generator) -> torch.Tensor:
    """float32 [ranks, tokens, width]: one family's values for every rank."""
    ranks, tokens, width = shape
    kind = "zero_rows" if family == "zero_latents" else family
    if kind == "zero_rows":  # the same tokens in every slot
        return torch.stack([rows((tokens, width), kind, gen) for _ in range(ranks)])
    values = rows((ranks * tokens, width), kind, gen).reshape(shape)
    if family == "cancelling":
        odd = values[1::2]
        odd *= LEFT
        odd -= values[0 : 2 * odd.shape[0] : 2]
    elif family == "rank_order" and ranks > 2:
        values[0] = (values[0] * SWAMPED).to(torch.bfloat16).float()
        values[-1] = -values[0]
    elif family == "growing":
        step = torch.arange(ranks, device=gen.device)[:, None] + torch.arange(tokens, device=gen.device)
        values *= torch.exp2((step % 17 - 8).float())[..., None]
    return values
