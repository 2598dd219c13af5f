"""Which experts the tokens of a batch go to: routings that real traffic and bad luck both produce.

    route(kind, tokens, experts, top_k, gen) -> i32 [tokens, top_k]     distinct within a row, in no particular order
    weights(tokens, top_k, gen) -> bf16 [tokens, top_k]                 positive, a row sums to about 1
    expected_distinct(tokens, experts, top_k) -> float                  under uniform routing

There is no public trace of the model's routing. `trace` stands in for one: expert popularity falls as rank^-TRACE_SKEW
over a random order of the experts, which is a declared assumption and not a measurement.
"""

from collections.abc import Callable, Mapping

import torch

TRACE_SKEW = 0.6  # the most popular expert of 896 then serves about a third of the tokens
REQUEST = 4  # consecutive tokens of one request in `shared`, as in a verify step

_BOOST = 2.0  # above every plain key, which lie in 0..1


def expected_distinct(tokens: int, experts: int, top_k: int) -> float:
    """Mean number of different experts that `tokens` uniformly routed tokens reach."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def _rand(rows: int, experts: int, gen: torch.Generator) -> torch.Tensor:
    return torch.rand((rows, experts), generator=gen, device=gen.device)


def _boosted(keys: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
    """`keys` with the `count` best experts of each row of `groups` lifted above all others."""
    return keys.scatter_add(1, groups.topk(count, dim=1).indices, torch.full_like(keys, _BOOST))


def _uniform(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    return _rand(tokens, experts, gen)


def _same(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    return _rand(1, experts, gen).expand(tokens, experts)


def _ragged(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """One expert serves every token but the last; all else is uniform."""
    keys = _rand(tokens, experts, gen)
    hot = torch.randint(experts, (1,), generator=gen, device=gen.device)
    keys[:, hot] = 0.0
    keys[: max(1, tokens - 1), hot] = _BOOST
    return keys


def _trace(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """Draws without replacement in proportion to popularity: the top of log p + Gumbel noise."""
    order = torch.randperm(experts, generator=gen, device=gen.device)
    gumbel = -torch.log(-torch.log(_rand(tokens, experts, gen).clamp(1e-7, 1 - 1e-7)))
    return gumbel - TRACE_SKEW * torch.log1p(order.float())


def _shared(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """The tokens of a request have three quarters of their experts in common."""
    requests = _rand(-(-tokens // REQUEST), experts, gen).repeat_interleave(REQUEST, dim=0)[:tokens]
    return _boosted(_rand(tokens, experts, gen), requests, top_k * 3 // 4)


def _hot_half(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """Half of each row comes from the same top_k experts."""
    hot = _boosted(torch.zeros((1, experts), device=gen.device), _rand(1, experts, gen), top_k)
    return _boosted(_rand(tokens, experts, gen), hot + _rand(tokens, experts, gen), top_k // 2)


def _distinct(tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """No expert twice before every one has been used: rows of random orders of all experts."""
    rows = experts // top_k
    orders = [torch.randperm(experts, generator=gen, device=gen.device) for _ in range(-(-tokens // rows))]
    ids = torch.cat([o[: rows * top_k].view(rows, top_k) for o in orders])[:tokens]
    return torch.zeros((tokens, experts), device=gen.device).scatter(1, ids, 1.0)


_KEYS: Mapping[str, Callable[[int, int, int, torch.Generator], torch.Tensor]] = {
    "uniform": _uniform,
    "same": _same,
    "distinct": _distinct,
    "ragged": _ragged,
    "trace": _trace,
    "shared": _shared,
    "hot_half": _hot_half,
}
KINDS = tuple(_KEYS)


def route(kind: str, tokens: int, experts: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """Expert ids, i32 [tokens, top_k] on the generator's device. Raises ValueError (one line) for an unknown kind."""
    if kind not in _KEYS:
        raise ValueError(f"unknown routing {kind!r}; known: {', '.join(KINDS)}")
    ids = _KEYS[kind](tokens, experts, top_k, gen).topk(top_k, dim=1).indices
    slots = _rand(tokens, top_k, gen).argsort(dim=1)
    return ids.gather(1, slots).to(torch.int32)


def weights(tokens: int, top_k: int, gen: torch.Generator) -> torch.Tensor:
    """Renormalised sigmoid scores of normal logits, bf16 [tokens, top_k]."""
    scores = torch.sigmoid(torch.randn((tokens, top_k), generator=gen, device=gen.device))
    return (scores / scores.sum(1, keepdim=True)).to(torch.bfloat16)
