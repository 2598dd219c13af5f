"""Model Runner V2 as far as the plugin meets it, over the stand-in of vLLM's model (`support.vllm_standin`)."""

import sys
from typing import Any

import torch
from support.vllm_standin import HIDDEN, drawn

from kgen.serve.vllm import ARCHITECTURE
from kgen.serve.vllm.host import Host, alone


class Engine:
    """Model Runner V2 as far as the plugin meets it. `capturing` says whether the call that runs is captured."""

    def __init__(self) -> None:
        self.capturing = False
        self.rehearsed: dict[int, torch.Tensor] = {}
        self.graphs: dict[int, torch.Tensor] = {}
        self.model: Any = None
        self.state: Any = None

    def decoding(self) -> bool:
        return self.capturing

    def load(self, vllm_config: Any) -> "Engine":
        cls = sys.modules["vllm"].ModelRegistry.models[ARCHITECTURE].load()
        self.model = cls(vllm_config=vllm_config, prefix="")
        self.state = self.model.get_model_state_cls()(vllm_config, self.model, None, "cpu")
        return self

    def serve(self, sizes: tuple[int, ...]) -> "Engine":
        """Profile with a first cache, then bind the real one; each time every size is run once and then captured."""
        for _ in range(2):
            self.state.initialize_kv_cache(None, None)
            for tokens in sizes:
                self.rehearsed[tokens] = self.step(tokens, for_capture=True)
                self.prepare(for_capture=True)
                self.graphs[tokens] = self.capture(tokens)
            self.state.capture_inner_cudagraphs(None, None, None, None)
        return self

    def prepare(self, for_capture: bool) -> None:
        found = self.state.prepare_attn(None, "NONE", (), None, [], None, for_capture=for_capture)
        assert found == {"for_capture": for_capture}

    def step(self, tokens: int, for_capture: bool = False) -> torch.Tensor:
        """One eager step, or the run before a capture."""
        self.prepare(for_capture)
        return self.run(tokens)

    def run(self, tokens: int) -> torch.Tensor:
        rows = drawn((tokens, HIDDEN), 7).data * HIDDEN**0.5
        with torch.inference_mode():
            return self.model(rows, torch.arange(tokens))

    def capture(self, tokens: int) -> torch.Tensor:
        self.capturing = True
        try:
            return self.run(tokens)
        finally:
            self.capturing = False


def host(engine: Engine) -> Host:
    """This process as one rank beside an H200, on the CPU."""
    return Host(alone, "sm_90", engine.decoding, device="cpu", version="0.33.0")
