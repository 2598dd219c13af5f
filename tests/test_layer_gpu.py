"""A layer on a GPU: captured, counted, right, and put back between replays; on the small model."""

import pytest
import torch

from kgen.gates.layer.measure import measure
from kgen.gates.layer.points import ANY_CONTEXT, Job, Point
from kgen.model.decoder.config import KDA, MLA
from kgen.ops import REGISTRY

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("kind", [KDA, MLA])
def test_a_layer_is_captured_counted_and_right(kind: str) -> None:
    point = Point("nano", kind, 8, ANY_CONTEXT if kind == KDA else 4096)
    got = measure(Job(point, repetitions=5, compiled=False, prefetch=("none", "gaps")), REGISTRY)
    assert all(s.us > 0 for s in got.sides) and got.side("prefetch_gaps") is not None
    assert all(s.launches >= len(got.parts) for s in got.sides if s.name in ("unfused", "chain"))
    whole = got.side("chain")
    assert whole is not None and whole.launches == len(got.timeline) and got.floor_us > 0
    assert len({k.stream for k in got.timeline}) == 2  # the shared expert runs beside
    assert sum(p.us for p in got.parts) > 0
