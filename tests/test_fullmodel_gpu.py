"""The full-model gate on a real GPU, with a real candidate: graphs, profiler, launch counts, mutants."""

from pathlib import Path

import pytest
import torch

from kgen.gates import fullmodel
from kgen.gates.compile import CompileGate
from kgen.gates.environment import device_arch
from kgen.gates.sandbox.levels import NoSandboxError
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin, Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SOURCE = (Path(__file__).parents[1] / "docs" / "examples" / "moe_shared.py").read_text()


def test_the_worked_example_passes_and_its_mutants_do_not(tmp_path: Path) -> None:
    op, arch = REGISTRY.get("moe_shared"), device_arch()
    candidate = Candidate(op.name, SOURCE, Origin("test"))
    problems = [op.problem("nano", tokens, arch) for tokens in (1, 8)]
    try:
        with CompileGate(op, tmp_path / "cache") as gate:
            sound, *broken = (gate.run(candidate, problems, d).artefacts for d in ("", "tile_scale", "drop_last_k"))
    except NoSandboxError as error:
        pytest.skip(str(error))
    mutants = [m for found in broken for m in found]
    result = fullmodel.run(op, sound, mutants, cache=tmp_path / "linked")
    assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message
    assert {name: m["refused"] for name, m in result.evidence["mutants"].items()} == {
        "tile_scale": True,
        "drop_last_k": True,
    }
    shown = result.evidence["attestation"]["nano t8"]
    assert shown["captured"] == shown["per_step"] and sum(shown["per_step"].values()) == 16
