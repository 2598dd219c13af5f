"""Records which experts the tokens of a server go to, where it is asked to: `additional_config["kgen"]["routing"]`.

Only calls outside of captured graphs are seen, for a replayed graph runs no Python: prefill, and every step under
`--enforce-eager`. Each call then waits for its ids, so a server that records is slower: record apart from measuring.
Not covered: the format (`kgen.serve.routing_trace`), steps inside of graphs, and telling the made-up tokens of vLLM's
own runs at its start from those of requests.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kgen.serve.routing_trace import Writer

LOG = logging.getLogger("vllm.kgen")


def capturing() -> bool:
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    return bool(initialised and torch.cuda.is_current_stream_capturing())


class Recorder:
    """One file for all layers, begun at the first call. What cannot be written ends the record and no request."""

    def __init__(self, path: Path, experts: int, captured: Callable[[], bool]) -> None:
        self._path, self._experts, self._captured = path, experts, captured
        self._trace: Writer | None = None
        self._broken = False

    def add(self, layer: int, ids: torch.Tensor) -> None:
        if self._broken or self._captured():
            return
        try:
            if self._trace is None:
                self._trace = Writer(self._path, self._experts, int(ids.shape[1]))
            self._trace.add(layer, ids.tolist())
        except OSError as error:
            self._broken = True
            LOG.warning("kgen: routing is recorded no more: %s: %s", self._path, error.strerror)


def record(model: Any, path: Path, captured: Callable[[], bool] = capturing) -> None:
    """Puts a recorder behind each router's choice; the choice stays as it is."""
    blocks = {i: layer.block_sparse_moe for i, layer in enumerate(model.model.layers) if layer.is_moe_layer}
    experts = next((int(block.gate.weight.shape[0]) for block in blocks.values()), 0)
    recorder = Recorder(path, experts, captured)
    for index, block in blocks.items():
        _watch(block.experts.router, index, recorder)


def _watch(router: Any, layer: int, recorder: Recorder) -> None:
    stock = router._compute_routing

    def routing(hidden_states: Any, router_logits: Any, indices_type: Any, *, input_ids: Any = None) -> Any:
        weights, ids = stock(hidden_states, router_logits, indices_type, input_ids=input_ids)
        recorder.add(layer, ids)
        return weights, ids

    router._compute_routing = routing
