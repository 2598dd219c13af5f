"""A routing trace that the stand-in of vLLM's model records, as a server with `"routing"` in its settings does."""

from pathlib import Path

import torch
from support.vllm_standin import HIDDEN, KimiLinearForCausalLM, drawn

from kgen.serve.vllm.routing import record


def recorded_trace(path: Path, tokens: int = 70) -> Path:
    """Three layers, 16 experts of which a token has 4: the small model's, as moe_experts has it at nano."""
    model = KimiLinearForCausalLM(vllm_config=None)
    record(model, path, lambda: False)
    with torch.inference_mode():
        model(drawn((tokens, HIDDEN), 7).data * HIDDEN**0.5, torch.arange(tokens))
    return path
