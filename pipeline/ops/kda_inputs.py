"""Inputs of KDA contracts: value families of rows, weights, states and slots, and their way into kgen.ops.kda_math.

Rows and f_b lie on coarse grids, of 2^-5 and 2^-9 for unit values. Products f_a f_b are then multiples of 2^-14, and
their sums over 128 stay below 2^9: exact in float32 in any order. So the bf16 rounding of rg has one outcome, whoever
computes it. Not here: anything that judges.
"""

import torch

from kgen.contract.families import normal, rows
from kgen.contract.op import Values
from kgen.ops import kda_math
from kgen.ops.kda_math import Constants, Weights

HEAD = 128  # width of a head, of q, k and v alike
RANK = 128  # of the decay gate
TAPS = 3  # inputs that the convolution sees besides the newest
WARM_STEPS = 32
SATURATED = 40.0  # sigmoid(-40) is 4e-18, sigmoid(40) rounds to 1
ROW_GRID, GATE_GRID = 2.0**-5, 2.0**-9
SCALES = {"tiny": 2.0**-40, "large": 2.0**10}  # of rows, as kgen.contract.families draws them


def widths(heads: int) -> dict[str, int]:
    """Dim symbols of a rank with that many heads; `columns` are q, k, v, g, f_a, beta, padded to 16."""
    width = heads * HEAD
    columns = -(-(4 * width + RANK + heads) // 16) * 16
    return {"heads": heads, "width": width, "channels": 3 * width, "columns": columns}


def tensor(values: Values, name: str) -> torch.Tensor:
    value = values[name]
    assert isinstance(value, torch.Tensor)
    return value


def weights_of(values: Values, dtype: torch.dtype) -> Weights:
    return Weights(*(tensor(values, n) for n in ("conv_w", "f_b", "a_log", "dt_bias", "w_onorm"))).to(dtype)


def constants_of(values: Values) -> Constants:
    return Constants(*(float(values[n]) for n in ("lower_bound", "scale", "eps_qk", "eps")))


def draw(
    size: dict[str, int], scalars: Values, family: str, gen: torch.Generator, slots_gen: torch.Generator
) -> Values:
    """All inputs of one call. `size`: the op's symbols; `slots_gen` draws the slots, `gen` the rest."""
    p = _rows((size["tokens"], size["columns"]), family, gen)
    if family == "beta_saturated":
        start = 4 * size["width"] + RANK
        beta = p[:, start : start + size["heads"]]
        beta.copy_(torch.where(normal(tuple(beta.shape), gen) < 0, -SATURATED, SATURATED))
    values: Values = {"p": p, **_weights(size, family, gen), **scalars}
    return {**values, **_states(size, family, gen, values), **_slots(size, family, slots_gen, gen)}


def _on_grid(x: torch.Tensor, step: float) -> torch.Tensor:
    """bf16 multiples of `step`, a power of two: bf16 holds up to 256 steps one by one, beyond that every second, ..."""
    return (torch.round(x / step) * step).to(torch.bfloat16)


def _rows(shape: tuple[int, ...], family: str, gen: torch.Generator) -> torch.Tensor:
    return _on_grid(rows(shape, family, gen), ROW_GRID * SCALES.get(family, 1.0))


def _weights(size: dict[str, int], family: str, gen: torch.Generator) -> Values:
    heads = size["heads"]
    shift = {"long_memory": -6.0, "fast_decay": 6.0}.get(family, 0.0)
    # where the decay is to stay near one end: rg + dt_bias on one side, gates too flat to saturate altogether
    spread, steepest = (0.5, 2) if shift else (1.0, 16)
    # uniform in 1..steepest, one head in each of that many equal parts: steep and flat gates in every draw
    parts = torch.arange(heads, device=gen.device) + torch.rand((heads,), generator=gen, device=gen.device)
    slopes = 1 + (steepest - 1) * parts / heads
    return {
        "conv_w": normal((size["channels"], TAPS + 1), gen, (TAPS + 1) ** -0.5),
        "f_b": _on_grid(normal((size["width"], RANK), gen, RANK**-0.5 * spread), GATE_GRID),
        "a_log": slopes.log(),
        "dt_bias": normal((size["width"],), gen, spread) + shift,
        "w_onorm": (1 + normal((HEAD,), gen, 0.1)).to(torch.bfloat16),
    }


def _states(size: dict[str, int], family: str, gen: torch.Generator, values: Values) -> Values:
    """conv and S of all slots; `values` has weights and scalars already, which `warm` runs on."""
    slots, channels, taps = size["state_slots"], size["channels"], size["taps"]
    shape = (slots, size["heads"], HEAD, HEAD)
    if family == "warm":
        p = _rows((slots, WARM_STEPS, size["columns"]), family, gen)
        empty, zeros = p.new_zeros((slots, channels, TAPS)).float(), torch.zeros(shape, device=gen.device)
        weights, constants = weights_of(values, torch.float32), constants_of(values)
        _, _, state = kda_math.sequence(p.float(), empty, zeros, weights, constants, rounded=True)
        return {"conv": p[:, WARM_STEPS - taps :, :channels].mT.contiguous(), "s": state}
    # the steps of `drift` fill an empty state, which costs nothing to draw at every one of them
    state = torch.zeros(shape, device=gen.device) if family == "drift" else normal(shape, gen, 0.5)
    conv = _rows((slots, taps, channels), family, gen)
    if family in ("drift", "zero_rows"):
        conv.zero_()
    return {"conv": conv.mT.contiguous(), "s": state}


def _slots(size: dict[str, int], family: str, gen: torch.Generator, accepted_gen: torch.Generator) -> Values:
    """Distinct slots in random order, slot 0 left out; `accepted` counts through 1..q from a random start."""
    requests, q, device = size["requests"], size["each"], gen.device
    order = torch.randperm(size["state_slots"] - 1, generator=gen, device=device)[: requests * q]
    slots = (order + 1).to(torch.int32).reshape(requests, q)
    first = torch.randint(q, (1,), generator=accepted_gen, device=device)
    accepted = ((first + torch.arange(requests, device=device)) % q + 1).to(torch.int32)
    if family == "null_slots":
        slots[::4], slots[2::4], accepted[::2] = 0, -1, 0
    return {"slots": slots.flatten()} if q == 1 else {"slots": slots, "accepted": accepted}
