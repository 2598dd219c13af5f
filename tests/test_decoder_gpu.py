"""On a GPU: the decode model in CUDA graphs gives what it gives eagerly; every stock op is captured in it."""

import pytest
import torch
from support.decoders import CONTEXT, relative, tokens

from kgen.model.bind import StockBinder
from kgen.model.decoder.config import CONFIGS, Config, config
from kgen.model.decoder.draw import draw
from kgen.model.decoder.engine import DecoderEngine, ForGeneration
from kgen.model.decoder.prefill import prefill
from kgen.model.decoder.weights import Weights
from kgen.model.generation.lookup import LookupDrafter
from kgen.model.generation.speculative import Request, generate
from kgen.model.generation.stopping import StopRules
from kgen.ops import REGISTRY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
STEPS = 24


@pytest.fixture(scope="module")
def drawn() -> dict[str, Weights]:
    return {}


def engine(name: str, drawn: dict[str, Weights], **changes: object) -> DecoderEngine:
    chosen: Config = config(name, **changes)
    if name not in drawn:
        drawn.clear()  # one model's weights at a time
        drawn[name] = draw(chosen, REGISTRY, 1, "cuda")
    return DecoderEngine(chosen, drawn[name], REGISTRY, "", StockBinder())


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("name", [n for n, c in CONFIGS.items() if not c.trained])
@torch.no_grad()
def test_a_captured_step_decodes_as_an_eager_one(name: str, rows: int, drawn: dict[str, Weights]) -> None:
    ids = tokens(STEPS, rows).cuda()
    made = engine(name, drawn)
    eager = made.prepare(rows, rows, 1, CONTEXT, graph=False).teacher_forced(ids)
    graph = made.prepare(rows, rows, 1, CONTEXT, graph=True).teacher_forced(ids)
    assert torch.isfinite(eager.logits).all()
    assert relative(graph.logits, eager.logits) == 0


@pytest.mark.parametrize("changes", [{"dcp": 2}, {"fused_oproj": True}], ids=str)
@torch.no_grad()
def test_variants_are_captured_too(changes: dict[str, object], drawn: dict[str, Weights]) -> None:
    ids = tokens(STEPS, 8).cuda()
    made = engine("nano-random", drawn, **changes)
    eager = made.prepare(8, 8, 1, CONTEXT, graph=False).teacher_forced(ids)
    graph = made.prepare(8, 8, 1, CONTEXT, graph=True).teacher_forced(ids)
    assert relative(graph.logits, eager.logits) == 0


@torch.no_grad()
def test_speculation_runs_in_graphs_after_a_prefill(drawn: dict[str, Weights]) -> None:
    made = engine("nano-random", drawn)
    run = made.prepare(8, 8, 4, CONTEXT, graph=True)
    prefill(run, tokens(32, 8).cuda())
    prompts = [tuple(tokens(4, 8, seed=2)[:, r].tolist()) for r in range(8)]
    done = generate(ForGeneration(run), [Request(p, StopRules(24)) for p in prompts], width=4, drafter=LookupDrafter(3))
    assert all(len(c.tokens) == 24 for c in done)
