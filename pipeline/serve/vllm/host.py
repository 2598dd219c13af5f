"""Everything that is asked of vLLM's own modules at run time, by name and late: this package imports without vLLM.

Not covered: what a model's layers look like (`seats`) and what a configuration must say (`guards`).
"""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kgen.serve.load import device_capability
from kgen.serve.vllm import ARCHITECTURE

Agree = Callable[[Sequence[bool]], list[bool]]


@dataclass(frozen=True)
class Host:
    """The process that a model is served in. `agree` gives each flag's minimum over the ranks, the same on all."""

    agree: Agree
    capability: str  # sm_90 and so on, "" without a GPU
    decoding: Callable[[], bool]  # whether the call that runs now is captured into a decode graph
    rank: int = 0
    ranks: int = 1
    device: str = "cuda"
    version: str = ""


def alone(flags: Sequence[bool]) -> list[bool]:
    """The agreement of a single rank."""
    return [bool(f) for f in flags]


def over_ranks(reduce_min: Callable[[torch.Tensor], object]) -> Agree:
    """Agreement by one reduction; `reduce_min` replaces an int32 CPU tensor by its minimum over the ranks."""

    def agree(flags: Sequence[bool]) -> list[bool]:
        votes = torch.tensor([int(f) for f in flags], dtype=torch.int32)
        reduce_min(votes)
        return [bool(v) for v in votes.tolist()]

    return agree


def serving() -> Host:
    """The host of this worker. Needs vLLM's tensor-parallel group: there before a model is built."""
    group = importlib.import_module("vllm.distributed").get_tp_group()

    def reduce_min(votes: torch.Tensor) -> None:
        torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)

    return Host(
        agree=alone if group.world_size == 1 else over_ranks(reduce_min),
        capability=device_capability(),
        decoding=in_decode_graph,
        rank=int(group.rank_in_group),
        ranks=int(group.world_size),
        version=importlib.metadata.version("vllm"),
    )


def in_decode_graph() -> bool:
    """Whether the current stream is captured into a FULL graph; those hold decode steps only (a guard sees to it).

    Eager steps, the run before each capture (`Plan.prepared` knows that one) and PIECEWISE captures answer no, so
    prefill and mixed steps run stock.
    """
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    if not initialised or not torch.cuda.is_current_stream_capturing():
        return False
    contexts = importlib.import_module("vllm.forward_context")
    if not contexts.is_forward_context_available():
        return False
    return bool(contexts.get_forward_context().cudagraph_runtime_mode.name != "PIECEWISE")


def attention_metadata(layer: str) -> Any:
    """What the step that runs holds for the attention layer of this name; None outside of a step."""
    contexts = sys.modules.get("vllm.forward_context")
    if contexts is None or not contexts.is_forward_context_available():
        return None
    found = contexts.get_forward_context().attn_metadata
    return found.get(layer) if isinstance(found, dict) else None


def parent_class() -> Any:
    """vLLM's own class of the architecture, as its table of models names it, whatever is registered now."""
    table = importlib.import_module("vllm.model_executor.models.registry")._VLLM_MODELS
    module, name = table[ARCHITECTURE]
    return getattr(importlib.import_module(module), name)
