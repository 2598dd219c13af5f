"""The promoted set of this repository on a GPU of its arch: served, captured, and seated in the decode model."""

from pathlib import Path

import pytest
import torch

from kgen.contract import compare, relative_l2
from kgen.gates.environment import device_arch
from kgen.model.bind import StockBinder
from kgen.model.decoder.config import CONFIGS
from kgen.model.decoder.draw import draw
from kgen.model.decoder.engine import DecoderEngine
from kgen.model.decoder.swap import PROMOTED, SwapBinder
from kgen.ops import REGISTRY
from kgen.serve import load

SET = Path(__file__).parents[1] / "generated_kernels"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
OP = REGISTRY.get("moe_shared")
POINTS = [(dims, tokens) for dims in OP.pack.served for tokens in (1, 5, 16, 64)]
STEPS = 6


@pytest.mark.parametrize(("dims", "tokens"), POINTS)
def test_the_promoted_kernel_is_served_and_right(dims: str, tokens: int) -> None:
    served = load(OP.name, dims, tokens, device_arch(), set=SET)
    assert served.promoted, served.reason
    problem = OP.problem(dims, tokens, device_arch())
    values = OP.inputs(problem, "normal", 11, "cuda")
    stock = OP.stock(problem)(values)["y"]
    got = served({**values, **served.outputs("cuda")})["y"]
    torch.cuda.synchronize()
    true, rounded = (OP.reference(problem, values, r)["y"] for r in (False, True))
    assert compare(got, stock, rounded, true).complaint(OP.floor) == ""


@torch.no_grad()
def test_the_decode_model_uses_it_in_eager_and_graph_mode() -> None:
    model, tokens, arch = next(c for c in CONFIGS.values() if c.dims == OP.pack.served[0]), 8, device_arch()
    weights = draw(model, REGISTRY, 5, "cuda")
    gen = torch.Generator().manual_seed(1)
    ids = torch.randint(0, weights["embed"].shape[0], (STEPS, tokens), generator=gen).cuda()
    stock = DecoderEngine(model, weights, REGISTRY, arch, StockBinder()).prepare(tokens, tokens, 1, STEPS, graph=False)
    binder = SwapBinder(arch, "cuda", {OP.name: (1, 64)}, kernels=SET)
    engine = DecoderEngine(model, weights, REGISTRY, arch, binder, binder.launches)
    run = engine.prepare(tokens, tokens, 1, STEPS, graph=False)
    seats = [s for s in binder.seated if s.path == PROMOTED]
    assert len(seats) == sum(layer.ffn == "moe" for layer in model.layers)
    before = sum(sum(counts.values()) for counts in engine.launches().values())
    eager = run.teacher_forced(ids)
    launched = sum(sum(counts.values()) for counts in engine.launches().values()) - before
    served = load(OP.name, model.dims, tokens, arch, set=SET).promotion
    assert served is not None
    a_call = sum(served.launches[OP.problem(model.dims, tokens, arch).key].values())
    assert launched == a_call * len(seats) * STEPS
    want = stock.teacher_forced(ids)
    distance = torch.tensor([relative_l2(a, b) for a, b in zip(eager.logits, want.logits, strict=True)])
    assert float(distance.median()) < 0.2  # two roundings of one computation, not another one
    replayed = engine.prepare(tokens, tokens, 1, STEPS, graph=True).teacher_forced(ids)
    assert torch.equal(replayed.logits, eager.logits)
