"""On a GPU, at the model's own widths: every op's stock path passes the numeric gate in a candidate's place, CUDA
graphs included, so that its references, inputs and rules are fit to judge kernels there."""

from pathlib import Path

import pytest
import torch

from kgen.gates import numeric
from kgen.gates.environment import device_arch
from kgen.gates.runner.job import stock_spec
from kgen.ops import REGISTRY
from kgen.records import Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
ROWS = (1, 16)


@pytest.mark.parametrize("name", REGISTRY.ops)
def test_stock_passes_at_the_models_own_widths(name: str) -> None:
    op = REGISTRY.get(name)
    arch = device_arch()
    for axes in [{}, *({axis: values[-1]} for axis, values in op.axes.items())]:
        specs = [
            stock_spec(op.problem("k3-tp8", rows, arch, axes)) for rows in ROWS if rows % int(axes.get("q", 1)) == 0
        ]
        result = numeric.run_specs(op, specs, cache=Path("/nowhere"), device="cuda", sanitize=False)
        assert result.status is Status.PASS, f"{axes}: {result.code} {result.message}"
