"""Draws on a real GPU: those of the CPU, inside a CUDA graph as outside, at a vocabulary of real size."""

import pytest
import torch

from kgen.model.generation.sampling import Sampling, SamplingRows, draw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

REQUESTS = [Sampling(temperature=i % 4 / 2, top_k=i * 30 % 200, top_p=1 - i % 5 / 8, seed=i) for i in range(24)]


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits with ties, NaN and infinities, step indices, and a mask."""
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(len(REQUESTS), 20_480, generator=generator) * 3).bfloat16().float()
    logits[3, 100], logits[4, 7], logits[5, 9] = float("nan"), float("inf"), float("-inf")
    logits[6] = float("nan")
    mask = torch.rand(logits.shape, generator=generator) < 0.7
    return logits, torch.arange(len(REQUESTS)) * 1000, mask


def test_a_gpu_draws_what_the_cpu_draws() -> None:
    logits, step, mask = inputs()
    expected = draw(logits, SamplingRows.of(REQUESTS), step, mask)
    found = draw(logits.cuda(), SamplingRows.of(REQUESTS, "cuda"), step.cuda(), mask.cuda())
    assert torch.equal(found.cpu(), expected) and expected[6] == -1


def test_a_captured_draw_follows_its_inputs() -> None:
    logits, step, mask = (t.cuda() for t in inputs())
    rows = SamplingRows.of(REQUESTS, "cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        draw(logits, rows, step, mask)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = draw(logits, rows, step, mask)
    for _ in range(3):
        logits.copy_(logits.roll(1, -1))
        step.add_(1)
        graph.replay()
        assert torch.equal(captured, draw(logits, rows, step, mask))
