"""Real objects through the whole GPU side, on CPU: linked by hash, loaded through tvm-ffi, called, judged.

The objects are C with a built object's calling convention; tests/test_serve_load_gpu.py has compiled kernels.
"""

import subprocess
from pathlib import Path

import pytest
from support.inside import in_this_process

from kgen.gates import numeric, perf
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.rank import rank
from kgen.ops import REGISTRY
from kgen.records import Status
from kgen.serve.link import file_sha256
from kgen.serve.runtime import package_folders

SUPPORT = Path(__file__).parent / "support"
OP = REGISTRY.get("moe_shared")
SMALL = OP.pack.small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("objects")
    includes = [f"-I{each / 'include'}" for each in package_folders("tvm_ffi")]
    for name in ("shared_cpu", "negate"):
        target = str(made / f"{name}.o")
        subprocess.run(["cc", "-O3", "-fPIC", "-c", *includes, "-o", target, str(SUPPORT / f"{name}.c")], check=True)
    return made


def built(folder: Path, name: str, tokens: int) -> LoadSpec:
    path = folder / f"{name}.o"
    workspaces = (("bf16", (tokens, OP.dims[SMALL]["width"])),) if name == "shared_cpu" else ()
    problem = OP.problem(SMALL, tokens, "sm_90a")
    return LoadSpec(problem, "artefact", str(path), file_sha256(path), "kgen_entry", workspaces)


def test_an_object_that_is_right_passes(folder: Path) -> None:
    result = numeric.run_specs(OP, [built(folder, "shared_cpu", 2)], cache=folder / "cache", device="cpu")
    assert (result.status, result.code) == (Status.PASS, "numeric.pass"), result.message
    assert {r["status"] for r in result.evidence["sanitizer"].values()} == {"skip"}, "said, not silently left out"


def test_an_object_that_is_wrong_is_refused_on_its_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric, "running", in_this_process)
    result = numeric.run_specs(OP, [built(folder, "negate", 2)], cache=folder / "cache", device="cpu")
    assert (result.status, result.code) == (Status.FAIL, "numeric.error"), result.message


def test_an_object_called_with_the_wrong_arguments_is_a_crash_of_its_own(folder: Path) -> None:
    wrong = LoadSpec(**{**built(folder, "shared_cpu", 2).__dict__, "workspaces": ()})
    result = numeric.run_specs(OP, [wrong], cache=folder / "cache", device="cpu")
    assert (result.status, result.code) == (Status.FAIL, "numeric.crash"), result.message


def test_the_timed_outputs_of_an_object_are_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"graph": 2, "chained": 1, "cold": 2}
    common = {"cache": folder / "cache", "device": "cpu", "dims": (SMALL,), "repetitions": few}
    right, points, _ = perf.run_specs(
        OP, [built(folder, "shared_cpu", 1)], champion=[built(folder, "shared_cpu", 1)], **common
    )
    assert right.code in ("perf.pass", "perf.no_win"), right.message
    assert all(set(p.baselines_us) == {"stock", "champion"} for p in points)
    monkeypatch.setattr(perf, "running", in_this_process)
    wrong, _, _ = perf.run_specs(OP, [built(folder, "negate", 1)], **common)
    assert (wrong.status, wrong.code) == (Status.FAIL, "perf.wrong"), wrong.message


def test_ranking_tells_right_from_wrong(folder: Path) -> None:
    specs = [built(folder, "shared_cpu", 1), built(folder, "negate", 1)]
    right, wrong = rank(specs, cache=folder / "cache", device="cpu", repetitions=2)
    assert right.status == wrong.status == "ok"
    assert right.rel_l2 < 1e-2 < wrong.rel_l2


def test_an_object_with_another_hash_is_never_loaded(folder: Path) -> None:
    spec = LoadSpec(**{**built(folder, "negate", 1).__dict__, "object_sha256": "0" * 64})
    result = numeric.run_specs(OP, [spec], cache=folder / "cache", device="cpu")
    assert (result.status, result.code) == (Status.ERROR, "numeric.runner")
    assert "has sha256" in result.message
