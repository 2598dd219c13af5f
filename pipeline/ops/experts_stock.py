"""What a serving engine without a fused kernel runs for the routed experts: bf16 weights and batched GEMMs, in torch.

    Stock(hidden_scale, compile)(values) -> {"part": bf16 [tokens, latent]}     the formulas of kgen.ops.moe_experts

Not covered: an engine's own grouped kernels (Marlin, trtllm-gen), which the sweep measures where they are installed.
"""

from collections.abc import Callable

import torch

from kgen.contract.op import Values
from kgen.contract.quant import ScaleRule, mxfp8_round
from kgen.ops.moe_shared import situ, situ_and_mul
from kgen.ops.mxfp4 import decode

Compile = Callable[..., Callable[..., object]]
AT_ONCE = 64  # experts in bf16 at a time: 0.5 GB


class Stock:
    """Experts brought to bf16 and batched GEMMs. No host sync, and no shape depends on the routing.

    Few tokens: one GEMM for each (token, slot), gathered. Otherwise every token through every expert, of which each
    slot then takes its own: more arithmetic than needed, but each expert is brought to bf16 once.
    """

    def __init__(self, hidden_scale: ScaleRule | None, compile: Compile | None) -> None:
        """`hidden_scale`: how hidden units are quantised, None for bf16 activations."""

        def fused(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            return compile(f, dynamic=False) if compile else f  # type: ignore[return-value]

        def quantised(x: torch.Tensor, rule: ScaleRule) -> torch.Tensor:
            return mxfp8_round(x.float(), rule).to(torch.bfloat16)

        def activation(gate_up: torch.Tensor) -> torch.Tensor:
            if hidden_scale is None:
                return situ_and_mul(gate_up)
            return quantised(situ(*gate_up.chunk(2, dim=-1)), hidden_scale)

        self.wide = hidden_scale is not None  # gate and up stay float32 until they are quantised
        self.quantise, self.activation = fused(quantised), fused(activation)
        self.decode, self.weighted = fused(decode), fused(_weighted)

    def __call__(self, values: Values) -> dict[str, torch.Tensor]:
        t = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
        lat, ids = t["lat"], t["ids"]
        x = self.quantise(lat, ScaleRule.ROUND_UP) if self.wide else lat
        run = self._by_slot if ids.numel() <= t["w13"].shape[0] else self._by_expert
        return {"part": self.weighted(run(x, ids.clamp(min=0), t), t["w"], ids)}

    def _by_slot(self, x: torch.Tensor, ids: torch.Tensor, t: dict[str, torch.Tensor]) -> torch.Tensor:
        pairs = x.repeat_interleave(ids.shape[1], dim=0).unsqueeze(1)
        chosen = ids.flatten()
        parts = [
            self._mlp(pairs[i : i + AT_ONCE], *(t[n][chosen[i : i + AT_ONCE]] for n in ("w13", "s13", "w2", "s2")))
            for i in range(0, chosen.numel(), AT_ONCE)
        ]
        return torch.cat(parts).view(*ids.shape, -1)

    def _by_expert(self, x: torch.Tensor, ids: torch.Tensor, t: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = []
        for i in range(0, t["w13"].shape[0], AT_ONCE):
            some = [t[n][i : i + AT_ONCE] for n in ("w13", "s13", "w2", "s2")]
            parts.append(self._mlp(x.expand(some[0].shape[0], *x.shape), *some))
        token = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
        return torch.cat(parts)[ids, token]

    def _mlp(
        self, x: torch.Tensor, w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor
    ) -> torch.Tensor:
        """bf16 [n, m, latent] through n experts."""
        h = self.activation(_matmul(x, self.decode(w13, s13), self.wide))
        return torch.bmm(h, self.decode(w2, s2).mT)


def _matmul(x: torch.Tensor, w: torch.Tensor, wide: bool) -> torch.Tensor:
    """x @ w.T of bf16 batches, rounded to bf16 or `wide`: left in float32."""
    if not wide:
        return torch.bmm(x, w.mT)
    return torch.bmm(x, w.mT, out_dtype=torch.float32) if x.is_cuda else torch.bmm(x.float(), w.mT.float())


def _weighted(rows: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """bf16 [tokens, top_k, latent] -> bf16 [tokens, latent]: float32 in slot order, slots without an expert skipped."""
    live, factors = (ids >= 0).unsqueeze(-1), w.float().unsqueeze(-1)
    named = torch.where(live, rows.float(), 0.0)  # times 0: the sum stays what it was
    total = torch.zeros_like(named[:, 0])
    for row, factor in zip(named.unbind(1), torch.where(live, factors, 0.0).unbind(1), strict=True):
        total = torch.addcmul(total, row, factor)
    return total.to(torch.bfloat16)
