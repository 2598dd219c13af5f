"""A recorded routing trace in place of drawn expert ids, where a gate or a bench times work that depends on them.

    recorded(path) -> Recorded                   raises TraceError (one line)
    unfit(op, problems, trace) -> str            why these cannot be timed with it, "" where they can
    with_ids(values, name, trace, seed)          these values with the experts of recorded tokens
    facts(trace), said(facts)                    what evidence holds of it, and the words of a report's first line

The tokens of a batch are of one recorded layer, drawn from all that it has without repeats: those of a decode step
belong to requests that have nothing to do with each other. Which layer and which tokens, the seed says. Not covered:
weights of the slots (a trace has none: they are drawn), and ops that choose the experts themselves: what they read does
not depend on which ones they choose.
"""

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgen.contract import Op, Role, Values
from kgen.records import Problem, sha256_bytes
from kgen.serve.routing_trace import RoutingTrace, TraceError, read
from kgen.store.cache import is_sha256

RECORDED = "routing_recorded"  # the scenario of a perf point whose experts come from a trace
SYNTHETIC = "synthetic routing"
CHOICES = "top_k"  # the last dim of expert ids
MOST_BYTES = 64 << 20  # of a trace: a million tokens of sixteen experts; each process that times reads it whole


@dataclass(frozen=True)
class Recorded:
    """A trace as it was read. `sha256`: of the file's bytes."""

    path: Path
    sha256: str
    trace: RoutingTrace

    @property
    def tokens(self) -> int:
        """Of all layers together."""
        return sum(len(call.ids) for call in self.trace.calls)

    def ids(self, tokens: int, seed: int) -> list[tuple[int, ...]]:
        """Experts of `tokens` tokens of one layer, drawn by the seed. Raises TraceError when no layer has so many."""
        enough = [rows for rows in self.by_layer if len(rows) >= tokens]
        if not enough:
            raise TraceError(_too_short(self, tokens))
        draw = random.Random(seed)
        return draw.sample(draw.choice(enough), tokens)

    @functools.cached_property
    def by_layer(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(self.trace.tokens(layer) for layer in self.trace.layers)


def recorded(path: Path, sha256: str = "") -> Recorded:
    """`sha256`: what the file must hold. Raises TraceError (one line) for what is no trace, is too large or another."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            text = f"{size >> 20} MiB of routing trace, at most {MOST_BYTES >> 20} are read"
            raise TraceError(f"{path}: {text}; keep its first lines only (head -n)")
        if not path.is_file():
            raise TraceError(f"{path} is no file: a trace is read more than once, so no pipe and no folder")
        found = sha256_bytes(path.read_bytes())
        if sha256 and found != sha256:
            raise TraceError(f"{path} is not the routing trace that it was: {found[:12]}, not {sha256[:12]}")
        trace = read(path)
        if sha256_bytes(path.read_bytes()) != found:
            raise TraceError(f"{path} is being written: stop the recording, or take a copy of the file")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    return Recorded(path, found, trace)


def ids_in(op: Op) -> str:
    """The input that says which experts tokens go to, "" for an op that is not told."""
    return next(
        (t.name for t in op.tensors if t.role is Role.IN and t.shape[-1:] == (CHOICES,) and t.dtype == "i32"), ""
    )


def routes(op: Op) -> bool:
    """Whether expert ids go into the op or come out of it."""
    return any(t.shape[-1:] == (CHOICES,) for t in op.tensors)


def unfit(op: Op, problems: Sequence[Problem], trace: Recorded) -> str:
    if not ids_in(op):
        return f"{op.name} is not told which experts tokens go to: a routing trace has no place in its times"
    for problem in problems:
        sizes = op.sizes(problem)
        if why := mismatch(trace, sizes["experts"], sizes[CHOICES], problem.tokens):
            return f"{problem.key}: {why}"
    return ""


def mismatch(trace: Recorded, experts: int, top_k: int, tokens: int) -> str:
    """Why a trace does not fit so many tokens of such a router, "" where it does."""
    mine = trace.trace
    if (mine.experts, mine.top_k) != (experts, top_k):
        return f"the trace is of {mine.top_k} of {mine.experts} experts a token, here they are {top_k} of {experts}"
    longest = max(map(len, trace.by_layer), default=0)
    return "" if longest >= tokens else _too_short(trace, tokens)


def _too_short(trace: Recorded, tokens: int) -> str:
    return f"{trace.path.name} has no layer with {tokens} tokens: record more of them"


def with_ids(values: Values, name: str, trace: Recorded, seed: int) -> Values:
    """`name`: the input that holds expert ids."""
    drawn = values[name]
    assert isinstance(drawn, torch.Tensor)
    ids = torch.tensor(trace.ids(drawn.shape[0], seed), dtype=drawn.dtype, device=drawn.device)
    return {**values, name: ids}


def facts(trace: Recorded) -> dict[str, Any]:
    mine = trace.trace
    counts = {"tokens": trace.tokens, "layers": len(mine.layers), "experts": mine.experts, "top_k": mine.top_k}
    return {"sha256": trace.sha256, **counts}


def is_facts(found: Mapping[str, Any]) -> bool:
    """Whether these are facts of a trace, as far as a report names them; evidence may come from anybody."""
    counts = (found.get("tokens"), found.get("layers"))
    return is_sha256(str(found.get("sha256", ""))) and all(type(n) is int and n >= 0 for n in counts)


def said(found: Iterable[Mapping[str, Any]]) -> str:
    """Of the facts of the traces that something was timed with: none is synthetic routing."""
    named = [f"routing trace {str(f['sha256'])[:12]} ({f['tokens']} tokens, {f['layers']} layers)" for f in found]
    return ", ".join(named) or SYNTHETIC
