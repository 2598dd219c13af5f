"""Promoted objects link and load with the runtime that vLLM 0.33 pins: CuTe DSL 4.8.0 (cu13) and tvm-ffi 0.1.11."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kgen.store.kernelset import KernelSet

ROOT = Path(__file__).parents[1]
PINS = ("nvidia-cutlass-dsl-libs-cu13==4.8.0", "apache-tvm-ffi==0.1.11")
WANTED = ("libcute_dsl_runtime.so", "tvm_ffi/")
LOAD = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch
import tvm_ffi

from kgen.serve.launcher import Launcher
from kgen.serve.link import file_sha256, link
from kgen.serve.runtime import find_runtime

for path in map(Path, sys.argv[3:]):
    runtime = find_runtime()
    launch = Launcher(link(path, file_sha256(path), Path(sys.argv[2]), runtime), "kgen_entry")
    try:
        launch(*[torch.zeros(1, 7168, dtype=torch.bfloat16)] * 5)
    except Exception as error:
        print(tvm_ffi.__version__, runtime.cute_library, "|", " ".join(str(error).split()))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    got = subprocess.run([*command, *PINS], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"the pinned wheels cannot be fetched: {got.stderr.strip().splitlines()[-1:]}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if any(w in n for w in WANTED)])
    return folder


def test_promoted_objects_link_and_load_with_the_older_runtime(older: Path, tmp_path: Path) -> None:
    kernels = KernelSet(ROOT / "generated_kernels")
    manifest = kernels.manifest()
    narrow = {}  # an object of every op that serves
    for promotion in manifest.promotions:
        if promotion.seq in manifest.champions.values():
            key = min(promotion.objects, key=lambda k: int(k.split("/")[2][1:]))
            narrow[promotion.op] = promotion.objects[key]
    objects = [tmp_path / f"{sha256}.o" for sha256 in narrow.values()]
    for path, sha256 in zip(objects, narrow.values(), strict=True):
        path.write_bytes(kernels.object(sha256))
    assert len(objects) >= 10
    library = min(older.rglob("libcute_dsl_runtime.so"), key=lambda path: len(path.parts))
    environment = {**os.environ, "KGEN_CUTE_RUNTIME": str(library)}
    command = [sys.executable, "-P", "-c", LOAD, str(older), str(tmp_path / "linked"), *map(str, objects)]
    got = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = got.stdout.splitlines()
    assert len(lines) == len(objects), got.stdout + got.stderr
    for line in lines:  # the object's own check of its arguments: it is loaded and was called
        assert line.startswith(f"0.1.11 {library} | ")
        assert "when calling: `__call__(" in line, line
