"""The model evaluation on a real GPU, with a real candidate: graphs, profiler, launch counts, mutants, its time."""

from pathlib import Path

import pytest
import torch

from kgen.gates import modeleval
from kgen.gates.compile import CompileGate
from kgen.gates.contract import DEFECTS
from kgen.gates.environment import device_arch
from kgen.gates.modeleval.gate import trained_weights
from kgen.gates.sandbox.levels import NoSandboxError
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin, Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SOURCE = (Path(__file__).parents[1] / "docs" / "examples" / "moe_shared.py").read_text()


@pytest.mark.timeout(600)
def test_the_worked_example_passes_and_its_mutants_do_not(tmp_path: Path) -> None:
    op, arch = REGISTRY.get("moe_shared"), device_arch()
    candidate = Candidate(op.name, SOURCE, Origin("test"))
    problems = [op.problem(dims, tokens, arch) for dims in ("k3-tp8", "nano") for tokens in (1, 8, 64)]
    try:
        with CompileGate(op, tmp_path / "cache") as gate:
            sound, *broken = (gate.run(candidate, problems, d).artefacts for d in ("", *DEFECTS))
    except NoSandboxError as error:
        pytest.skip(str(error))
    mutants = [m for found in broken for m in found]
    result = modeleval.run(op, sound, mutants, cache=tmp_path / "linked")
    if trained_weights().is_file():
        assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message
    else:
        assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete"), result.message
        assert "no trained weights" in result.message
    assert {name: m["refused"] for name, m in result.evidence["mutants"].items()} == {
        f"moe_shared {defect}": True for defect in DEFECTS
    }
    shown = result.evidence["attestation"]["slice-tp8"]["slice-tp8 8x1"]
    assert shown["promoted"] == {"moe_shared": 4} and shown["launches_per_step"] == 8
    assert result.seconds < 180
