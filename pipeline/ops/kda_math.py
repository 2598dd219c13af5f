"""The maths of Kimi Delta Attention (KDA) after its input projection: convolution, gates, delta rule, gated norm.

    z      = silu(causal depthwise convolution of the raw q, k, v columns)
    q, k   = z_q rsqrt(sum z_q^2 + eps_qk) scale,  z_k rsqrt(sum z_k^2 + eps_qk);  v = z_v        per head
    D      = exp(lower_bound sigmoid(exp(a_log) (rg + dt_bias))),  rg = f_a f_b^T;  b = sigmoid(beta)
    S      = S D;  u = b (v - S k);  S = S + u k^T;  o = S q                                      S [v, k], D over k
    y      = o rsqrt(mean o^2 + eps) w_onorm sigmoid(g)

All sizes come from the shapes (heads H from a_log, width d from dt_bias, gate rank r from f_b, taps from conv_w), all
leading dimensions are batch, and everything is evaluated in the dtype of its inputs: float32 for what an engine runs,
float64 for references. Only `gate_rows` and `sequence` can round; elsewhere the caller does.

Rows p [..., N] hold q[d] k[d] v[d] g[d] f_a[r] beta[H], then columns that nothing reads. Not here: the projections
around it, slots of a state pool, a convolution bias (the model has none), the chunked form for long sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kgen.contract.quant import round_bf16


@dataclass(frozen=True)
class Weights:
    """conv_w [3d, taps + 1] (oldest input first), f_b [d, r], a_log [H], dt_bias [d], w_onorm [d / H]."""

    conv_w: torch.Tensor
    f_b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    w_onorm: torch.Tensor

    def to(self, dtype: torch.dtype) -> "Weights":
        return Weights(*(t.to(dtype) for t in (self.conv_w, self.f_b, self.a_log, self.dt_bias, self.w_onorm)))

    @property
    def heads(self) -> int:
        return self.a_log.shape[0]

    @property
    def width(self) -> int:
        return self.dt_bias.shape[0]


@dataclass(frozen=True)
class Constants:
    """`lower_bound` of ln D; `scale` of q; `eps_qk` joins the square sums of q and k, `eps` the mean square of o."""

    lower_bound: float
    scale: float
    eps_qk: float
    eps: float


@dataclass(frozen=True)
class Tokens:
    """What the recurrence needs of T tokens: q, k, v, decay, gate [..., T, H, d / H]; strength [..., T, H]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    strength: torch.Tensor
    gate: torch.Tensor


def _by_head(x: torch.Tensor, *heads: int) -> torch.Tensor:
    """The last dimension as `heads` and what is left of it."""
    return x.reshape(*x.shape[:-1], *heads, -1)


def f_a_columns(p: torch.Tensor, width: int, rank: int) -> torch.Tensor:
    """The gate's low-rank columns of rows [..., N]: [..., r]."""
    return p[..., 4 * width : 4 * width + rank]


def gate_rows(p: torch.Tensor, weights: Weights, rounded: bool) -> torch.Tensor:
    """rg [..., d] = f_a f_b^T of rows [..., N], rounded to bf16 values if asked."""
    rg = f_a_columns(p, weights.width, weights.f_b.shape[1]) @ weights.f_b.mT
    return round_bf16(rg) if rounded else rg


def convolve(history: torch.Tensor, conv_w: torch.Tensor) -> torch.Tensor:
    """silu of the causal depthwise convolution: history [..., C, taps + T], conv_w [C, taps + 1] -> z [..., T, C]."""
    windows = history.unfold(-1, conv_w.shape[1], 1)  # [..., C, T, taps + 1]
    return F.silu((windows * conv_w.unsqueeze(1)).sum(-1)).mT


def decay(rg: torch.Tensor, weights: Weights, lower_bound: float) -> torch.Tensor:
    """D [..., H, d / H], within (exp(lower_bound), 1), of rg [..., d]."""
    x = _by_head(rg + weights.dt_bias, weights.heads) * weights.a_log.exp().unsqueeze(-1)
    return torch.exp(lower_bound * torch.sigmoid(x))


def unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x over the root of its square sum plus eps, along the last dimension; a zero vector stays zero."""
    size = x.shape[-1]
    shrunk: float = size**-0.5
    return F.rms_norm(x, (size,), eps=eps / size) * shrunk


def prepare(
    p: torch.Tensor, rg: torch.Tensor, taps: torch.Tensor, weights: Weights, constants: Constants
) -> tuple[Tokens, torch.Tensor]:
    """All that does not depend on the state, for T tokens at once.

    p [..., T, N], rg [..., T, d], taps [..., 3d, taps] (raw inputs before the first token, oldest first). Returns the
    tokens and the raw inputs [..., 3d, taps + T] with the new ones behind the old.
    """
    width, heads, rank = weights.width, weights.heads, weights.f_b.shape[1]
    history = torch.cat([taps, p[..., : 3 * width].mT], dim=-1)
    qkv = _by_head(convolve(history, weights.conv_w), 3, heads)
    q, k = unit(qkv[..., :2, :, :], constants.eps_qk).unbind(-3)
    tokens = Tokens(
        q=q * constants.scale,
        k=k,
        v=qkv[..., 2, :, :],
        decay=decay(rg, weights, constants.lower_bound),
        strength=torch.sigmoid(p[..., 4 * width + rank : 4 * width + rank + heads]),
        gate=_by_head(torch.sigmoid(p[..., 3 * width : 4 * width]), heads),
    )
    return tokens, history


def delta_step(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    strength: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of every head: state [..., v, k], strength [...] -> o [..., v] and the new state."""
    decayed = state * decay.unsqueeze(-2)
    update = strength.unsqueeze(-1) * (v - (decayed @ k.unsqueeze(-1)).squeeze(-1))
    new = decayed + update.unsqueeze(-1) * k.unsqueeze(-2)
    return (new @ q.unsqueeze(-1)).squeeze(-1), new


def recurrence(state: torch.Tensor, tokens: Tokens) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """o [..., H, v] and the state [..., H, v, k] after each token, in order."""
    for t in range(tokens.q.shape[-3]):
        q, k, v, decay = (x[..., t, :, :] for x in (tokens.q, tokens.k, tokens.v, tokens.decay))
        out, state = delta_step(state, q, k, v, decay, tokens.strength[..., t, :])
        yield out, state


def gated_norm(out: torch.Tensor, gate: torch.Tensor, w_onorm: torch.Tensor, eps: float) -> torch.Tensor:
    """y [..., d] of o and gate [..., H, d / H]: RMS norm of each head, times its weights and the gate."""
    return (F.rms_norm(out, w_onorm.shape, w_onorm, eps) * gate).flatten(-2)


def advance(
    p: torch.Tensor,
    rg: torch.Tensor,
    taps: torch.Tensor,
    state: torch.Tensor,
    weights: Weights,
    constants: Constants,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A few tokens with all states kept, as a decode or verify step needs them; nothing is rounded.

    p [..., T, N], rg [..., T, d], taps [..., 3d, taps], state [..., H, v, k] -> y [..., T, d], raw inputs
    [..., 3d, taps + T], states after each token [..., T, H, v, k].
    """
    tokens, history = prepare(p, rg, taps, weights, constants)
    outs, states = zip(*recurrence(state, tokens), strict=True)
    y = gated_norm(torch.stack(outs, dim=-3), tokens.gate, weights.w_onorm, constants.eps)
    return y, history, torch.stack(states, dim=-4)


def sequence(
    p: torch.Tensor,
    taps: torch.Tensor,
    state: torch.Tensor,
    weights: Weights,
    constants: Constants,
    rounded: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A whole sequence, token by token: y [..., T, d], and the taps and the state after the last token.

    Arguments as for `advance`, T >= 1; zero taps and a zero state begin a request. `rounded`: rg and y are rounded to
    bf16 values. Memory does not grow with T beyond the rows themselves.
    """
    tokens, history = prepare(p, gate_rows(p, weights, rounded), taps, weights, constants)
    outs = []
    for out, after in recurrence(state, tokens):
        outs.append(out)
        state = after
    y = gated_norm(torch.stack(outs, dim=-3), tokens.gate, weights.w_onorm, constants.eps)
    return (round_bf16(y) if rounded else y), history[..., -taps.shape[-1] :].contiguous(), state
