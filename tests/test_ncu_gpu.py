"""Nsight Compute on a real GPU: the stock op in a candidate's place, its kernels counted, or a reason why not."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from kgen.gates.counters import take_spec
from kgen.gates.environment import device_arch
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.ncu import METRICS
from kgen.ops import REGISTRY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(shutil.which("ncu") is None, reason="needs Nsight Compute (ncu)"),
]
OP = REGISTRY.get("moe_shared")


def test_calls_between_the_marks_are_counted_or_the_reason_is_said(tmp_path: Path) -> None:
    found = take_spec(stock_spec(OP.problem(OP.pack.served[0], 8, device_arch())), cache=tmp_path)
    if found.skipped:
        assert not found.kernels
        pytest.skip(found.skipped)
    assert found.gpu and all(set(values) <= set(METRICS) for values in found.kernels.values())
    times = [values["gpu__time_duration.sum"] for values in found.kernels.values()]
    assert times and all(math.isfinite(t) and 0 < t < 1e7 for t in times)  # ns
    read = sum(values.get("dram__bytes_read.sum", 0.0) for values in found.kernels.values())
    assert read < 1e9  # a call's, not that of filling the buffers
