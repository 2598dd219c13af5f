"""Kernels that break a context or never end: what is committed of a real GPU fits the sources, and the way there works.

make runner-faults-gpu measures it; runner_faults/h200.json is what a GPU host wrote.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runner_faults import host, pack
from runner_faults.build import ARCH, OP, TOKENS, build
from runner_faults.compare import AGAIN, MEASURED, complaint, other_code
from runner_faults.kernels import EXPECTED, RIGHT, SOURCES
from support.carried import TABLE

from kgen.gates.artefacts import Artefact
from kgen.gates.gpu import places, standin
from kgen.gates.gpu.standin import StandIn
from kgen.gates.kit_wheels import HERE
from kgen.gates.runner.job import stock_spec
from kgen.records import sha256_text
from kgen.serve.runtime import torch_flavour

BUILT = ("endless_loop", RIGHT)  # of those, seconds each; all under make deep
FAULTS = {"illegal_address": "raises", "misaligned_address": "dies", "endless_loop": "hangs", RIGHT: ""}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artefact]:
    return build(tmp_path_factory.mktemp("builds"), BUILT)


def measured() -> dict[str, Any]:
    if not MEASURED.exists():
        pytest.skip("not measured yet")
    found: dict[str, Any] = json.loads(MEASURED.read_text())
    return found


def test_on_the_gpu_every_fault_cost_one_candidate_and_the_next_right_one_passed() -> None:
    found = measured()
    assert found["schema"] == host.SCHEMA and found["environment"]["arch"] == ARCH and found["as_expected"] is True
    steps = found["steps"]
    assert complaint(found) == ""
    messages = {s["kernel"]: s["message"] for s in steps}
    assert "illegal memory access" in messages["illegal_address"]
    assert "misaligned address" in messages["misaligned_address"]
    assert all(messages[key].startswith("no progress for ") for key in ("endless_loop", "grid_deadlock"))


def test_what_ran_there_has_the_sources_of_today() -> None:
    assert {key: line["source_sha256"] for key, line in measured()["kernels"].items()} == {
        key: sha256_text(text) for key, text in SOURCES.items()
    }, AGAIN


def same_code(made: dict[str, Artefact]) -> None:
    assert other_code(measured(), made) == [], AGAIN


def test_another_artefact_is_red(made: dict[str, Artefact]) -> None:
    found = measured()
    code = found["kernels"][BUILT[0]]["code"]
    code[next(iter(code))] = "0" * 64
    assert other_code(found, made) == [BUILT[0]]
    found["kernels"][BUILT[0]]["compiler"]["version"] = "0"
    assert other_code(found, made) == [], "another release gives other machine code"


def test_what_ran_there_is_what_the_sources_compile_to(made: dict[str, Artefact]) -> None:
    same_code(made)


@pytest.mark.deep
def test_all_that_ran_there_is_what_the_sources_compile_to(tmp_path: Path) -> None:
    same_code(build(tmp_path))


def test_the_four_kinds_are_there() -> None:
    assert set(SOURCES) == set(EXPECTED) and len(SOURCES) == 5
    assert host.order(["a", "b", "r"], "r") == ["a", "r", "b", "r"]


def standing_in(line: dict[str, Any], root: Path) -> Any:
    return stock_spec(OP.problem(OP.pack.small, TOKENS, ARCH), FAULTS[line["key"]])


@pytest.mark.deep
def test_the_host_on_the_stand_in_tells_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "gpu"))
    lines = [{"key": key, "expected": list(EXPECTED[key])} for key in FAULTS]
    info = {"digest": "d", "right": RIGHT, "kernels": lines}
    with standin.in_place(StandIn(tmp_path)):
        found = host.perform(tmp_path / "out.json", tmp_path, info, standing_in, "cpu", stall=30.0)
    assert found["as_expected"] is True and json.loads((tmp_path / "out.json").read_text()) == found
    assert [s["kernel"] for s in found["steps"]] == host.order(list(FAULTS), RIGHT)
    assert [len(s["said"]) for s in found["steps"]] == [1, 0] * 3
    assert all("probe of GPU stand-in STANDIN-0: well, " in s["said"][0] for s in found["steps"][::2])


@pytest.mark.deep
def test_a_right_kernel_that_fails_is_not_as_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "gpu"))
    monkeypatch.setitem(FAULTS, RIGHT, "raises")
    lines = [{"key": key, "expected": list(EXPECTED[key])} for key in ("illegal_address", RIGHT)]
    with standin.in_place(StandIn(tmp_path)):
        info = {"digest": "d", "right": RIGHT, "kernels": lines}
        found = host.perform(tmp_path / "out.json", tmp_path, info, standing_in, "cpu")
    assert found["as_expected"] is False
    assert [(s["status"], s["code"]) for s in found["steps"]] == [("fail", "numeric.crash")] * 2


@pytest.fixture(scope="module")
def packed(made: dict[str, Artefact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For this Python, without the CuTe runtime: half a minute of compression."""
    folder = tmp_path_factory.mktemp("pack")
    pack.pack(folder / "faults.pyz", made, folder, (HERE,), ())
    return folder / "faults.pyz"


@pytest.mark.skipif(torch_flavour() != "", reason="needs a torch without CUDA")
def test_without_a_gpu_the_file_says_so_in_one_line(packed: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(packed), "out.json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{packed.name}: no CUDA GPU")


def test_the_file_holds_what_the_host_and_its_processes_import(packed: Path) -> None:
    import zipfile

    with zipfile.ZipFile(packed) as archive:
        info: dict[str, Any] = json.loads(archive.read(TABLE))
    paths = {f["path"] for f in info["files"]}
    assert {f"objects/{line['object_sha256']}.o" for line in info["kernels"]} <= paths
    wanted = ("numeric", "kit_units", "runner/__main__", "runner/numeric", "gpu/probe", "gpu/watchdog", "gpu/lease")
    assert {f"lib/kgen/gates/{module}.py" for module in wanted} <= paths
    assert "lib/runner_faults_host.py" in paths and "lib/kgen/serve/launch_counter.c" in paths
