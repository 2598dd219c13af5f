"""On a GPU: a training step from a CUDA graph does what the eager one does, for every row length and when they mix."""

import pytest
import torch

from kgen.model.nano.batches import to_device
from kgen.model.nano.captured import WARM_STEPS, CapturedSteps
from kgen.model.nano.learning import optimiser, train_step
from kgen.model.nano.packing import Diet, pack
from kgen.model.nano.shape import SHAPES
from kgen.model.nano.trainable import NanoModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
RATE = 1e-3


@pytest.mark.parametrize("progress", [0.2, 0.5], ids=["plain", "quantised"])
def test_captured_training_follows_eager_training(progress: float) -> None:
    diet = Diet(1, 4096, 512)
    packs = [pack(diet.job(i, progress)) for i in range(24)]
    lengths = [p.length for p in packs]
    assert max(map(lengths.count, lengths)) > WARM_STEPS + 2
    losses: dict[str, list[float]] = {}
    for way in ("eager", "captured"):
        model = NanoModel(SHAPES["pilot"], compute=torch.bfloat16, seed=3).to("cuda")
        steps = optimiser(model, RATE)
        captured = CapturedSteps(model, steps, RATE)
        found = []
        for packed in packs:
            batch = to_device(packed, "cuda")
            if way == "captured":
                found.append(captured(batch, progress, progress > 0.3))
            else:
                found.append(train_step(model, steps, batch, progress, RATE))
        losses[way] = torch.stack(found).tolist()
        assert way == "eager" or captured.graphs
    assert losses["captured"] == pytest.approx(losses["eager"], rel=0.05)
    assert losses["eager"][-1] < losses["eager"][0]
