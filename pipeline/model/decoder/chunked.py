"""KDA over many tokens in chunks: `kda_math.sequence` with a few launches a chunk instead of a dozen a token.

    sequence(p, taps, state, weights, constants, rounded) -> y, taps, state        arguments as for kda_math.sequence

The chunk's own part is that of kgen.model.nano.chunked, whose docstring has the equations; here it starts from a state
and returns the one after the last token. Not covered: gradients; decays below e^-5 a token.
"""

import torch
import torch.nn.functional as F

from kgen.contract.quant import round_bf16
from kgen.model.nano.chunked import CHUNK, factors
from kgen.ops import kda_math
from kgen.ops.kda_math import Constants, Tokens, Weights


def sequence(
    p: torch.Tensor,
    taps: torch.Tensor,
    state: torch.Tensor,
    weights: Weights,
    constants: Constants,
    rounded: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p [requests, T, N], taps [requests, 3d, taps], state [requests, H, v, k]: y [requests, T, d], and both after."""
    tokens, history = kda_math.prepare(p, kda_math.gate_rows(p, weights, rounded), taps, weights, constants)
    out, after = delta_rule(tokens, state)
    y = kda_math.gated_norm(out, tokens.gate, weights.w_onorm, constants.eps)
    return (round_bf16(y) if rounded else y), history[..., -taps.shape[-1] :].contiguous(), after


def delta_rule(tokens: Tokens, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """o [requests, T, H, v] of `tokens` [requests, T, H, ...] from state [requests, H, v, k], and the state after."""
    requests, length, heads = tokens.q.shape[:3]
    by_chunk = (_chunks(x) for x in (tokens.q, tokens.k, tokens.v, tokens.decay.log(), tokens.strength.unsqueeze(-1)))
    f = factors(*by_chunk)
    solved = torch.linalg.solve_triangular(
        f.lower.tril(-1), torch.cat([f.values, f.keys], -1), upper=False, unitriangular=True
    )
    own, through = solved.split([f.values.shape[-1], f.keys.shape[-1]], -1)
    mix, add = through.mT @ f.late_keys, own.mT @ f.late_keys
    states = [state.flatten(0, 1)]  # before each chunk, and after the last
    for c in range(add.shape[0]):
        kept = torch.addcmul(add[c], states[-1], f.end[c])
        states.append(torch.baddbmm(kept, states[-1], mix[c], alpha=-1))
    before = torch.stack(states[:-1]).mT
    out = f.queries @ before + f.attention @ (own - through @ before)  # [chunks, requests x H, CHUNK, v]
    rows = out.transpose(0, 1).flatten(1, 2)[:, :length].reshape(requests, heads, length, -1).transpose(1, 2)
    return rows, states[-1].view(state.shape)


def _chunks(x: torch.Tensor) -> torch.Tensor:
    """[requests, T, H, n] -> [chunks, requests x H, CHUNK, n]; zeros behind the end write nothing and decay nothing."""
    by_head = F.pad(x.transpose(1, 2), (0, 0, 0, -x.shape[1] % CHUNK)).flatten(0, 1)
    return by_head.reshape(by_head.shape[0], -1, CHUNK, x.shape[-1]).transpose(0, 1).contiguous()
