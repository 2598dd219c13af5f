"""The promoted set of this repository on a GPU of its arch: served, captured, and seated in the decode step."""

from pathlib import Path

import pytest
import torch

from kgen.contract import compare, relative_l2
from kgen.gates.environment import device_arch
from kgen.model.bind import ServeBinder, StockBinder
from kgen.model.dims import model_dims
from kgen.model.session import Session
from kgen.model.step import DecodeStep
from kgen.model.weights import draw
from kgen.ops import REGISTRY
from kgen.serve import load

SET = Path(__file__).parents[1] / "generated_kernels"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
OP = REGISTRY.get("moe_shared")
POINTS = [(dims, tokens) for dims in OP.pack.served for tokens in (1, 5, 16, 64)]


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


def test_the_decode_step_uses_it_in_eager_and_graph_mode() -> None:
    dims, tokens = model_dims(OP.pack.served[0]), 8
    weights = draw(dims, 5, "cuda")
    ids = torch.arange(tokens, device="cuda")
    with torch.inference_mode():
        stock = Session(DecodeStep(dims, weights, tokens, device_arch(), StockBinder(), REGISTRY), tokens).run(ids)
        binder = ServeBinder(device_arch(), "cuda", SET)
        session = Session(DecodeStep(dims, weights, tokens, device_arch(), binder, REGISTRY), tokens)
        served = load(OP.name, dims.name, tokens, device_arch(), set=SET)
        before = sum(served.counts().values())
        eager = session.run(ids)
        launched = sum(served.counts().values()) - before
        assert launched == 2 * dims.layers
        assert relative_l2(eager.logits, stock.logits) < 0.05  # two roundings of one computation, not another one
        first = eager.logits.clone()
        session.warm()
        session.capture()
        assert torch.equal(session.run(ids).logits, first)
