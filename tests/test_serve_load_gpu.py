"""A promoted object on a real GPU: launched, captured into a CUDA graph, counted, without allocating."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.sets import DIMS, KEY, OP, WIN, make_case

from kgen.contract import Values
from kgen.gates.compile import CompileGate
from kgen.gates.sandbox.levels import NoSandboxError
from kgen.ops import REGISTRY
from kgen.promotion import Current, promote
from kgen.records import Candidate, Origin, sha256_bytes
from kgen.serve import Served, load
from kgen.serve.load import device_capability
from kgen.store import SetPath
from kgen.store.signing import sign

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_capability() not in ("sm_90", "sm_103"), reason="needs an H200/H100 or B300 GPU"),
]

BIN = 8
CONTRACT = REGISTRY.get(OP).contract_sha256()
SOURCE = (Path(__file__).parent / "support" / "row_copy.py").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The row copy (y = m), built here, promoted with made-up evidence into a set of this test's own."""
    folder, arch = tmp_path_factory.mktemp("gpu"), device_capability() + "a"
    candidate = Candidate(OP, SOURCE, Origin("test"))
    try:
        with CompileGate(REGISTRY.get(OP), folder / "cache") as gate:
            report = gate.run(candidate, [REGISTRY.get(OP).problem(DIMS, BIN, arch)])
    except NoSandboxError as error:
        pytest.skip(str(error))
    (artefact,) = report.artefacts
    data = artefact.object.read_bytes()
    case = make_case(ratios={BIN: WIN}, op_contract=CONTRACT, arch=arch)
    objects = {artefact.record.problem.key: sha256_bytes(data)}
    evidence = replace(case.evidence.evidence, candidate=candidate.id, objects=objects)
    case = replace(
        case,
        candidate=candidate,
        verdict=replace(case.verdict, candidate=candidate.id),
        evidence=sign(evidence, KEY),
        builds=(artefact.record,),
        objects={sha256_bytes(data): data},
    )
    promote(SetPath(folder / "set"), case, Current({OP: CONTRACT}, 1), KEY)
    kernel = load(OP, DIMS, 5, arch, set=folder / "set")
    assert kernel.promoted, kernel.reason
    return kernel


@pytest.fixture
def values(served: Served) -> Values:
    made = served.op.inputs(served.problem, "normal", 3, "cuda")
    return {**made, **served.outputs("cuda")}


def test_a_call_writes_the_output_and_allocates_nothing(served: Served, values: Values) -> None:
    served(values)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    y = served(values)["y"]
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert torch.equal(y, values["m"])  # type: ignore[arg-type]  # a tensor


def test_launches_are_counted_as_the_build_record_says(served: Served, values: Values) -> None:
    before = served.counts()
    for _ in range(3):
        served(values)
    torch.cuda.synchronize()
    made = {name: n - before.get(name, 0) for name, n in served.counts().items()}
    assert made == {name: 3 * n for name, n in served.launches().items()}


def test_a_captured_call_replays_on_new_values(served: Served, values: Values) -> None:
    served(values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = served(values)["y"]
    for seed in (11, 12):
        fresh = served.op.inputs(served.problem, "normal", seed, "cuda")["m"]
        values["m"].copy_(fresh)  # type: ignore[union-attr,arg-type]
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, fresh)  # type: ignore[arg-type]
