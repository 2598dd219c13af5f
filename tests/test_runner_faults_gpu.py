"""On a real GPU: kernels that fault or hang cost one runner each, and the device is well for the next candidate."""

from pathlib import Path

import pytest
import torch
from runner_faults.build import ARCH, build
from runner_faults.kernels import EXPECTED, RIGHT, SOURCES

from kgen.gates import numeric
from kgen.gates.artefacts import Artefact
from kgen.gates.environment import device_arch
from kgen.gates.gpu import devices, health, lease, places, quarantine
from kgen.gates.gpu.lease import leased
from kgen.gates.runner.job import spec
from kgen.ops import REGISTRY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or device_arch() != ARCH, reason=f"needs a GPU of {ARCH}"),
]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "gpu"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artefact]:
    return build(tmp_path_factory.mktemp("builds"))


@pytest.mark.parametrize("key", [key for key in SOURCES if key != RIGHT])
def test_a_fault_is_the_candidates_and_the_next_right_one_passes(
    key: str, made: dict[str, Artefact], tmp_path: Path
) -> None:
    for one in (key, RIGHT):
        op = REGISTRY.get(made[one].record.problem.op)
        got = numeric.run_specs(op, [spec(made[one])], cache=tmp_path, deadline=120, stall=10, sanitize=False)
        assert (got.status.value, got.code) == EXPECTED[one], got.message
        assert not quarantine.listed() and lease.current() is None


def test_the_device_is_known_by_its_uuid_and_probed_well() -> None:
    found = devices.CUDA.devices()
    assert len({d.uuid for d in found}) == torch.cuda.device_count() and all("number" not in d.uuid for d in found)
    with leased("cuda", "probe", 300) as held:
        assert held is not None and held.device == found[0]
        assert health.probe(held) == ""
        owner = lease.owner_of(found[0])
        assert owner is not None and owner.what == "probe"
    assert lease.owner_of(found[0]) is None
