"""Launches are counted where an object meets the runtime library: a real link and load, with a stand-in runtime."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kgen.serve.runtime import package_folders

SUPPORT = Path(__file__).parent / "support"
# A process of its own: the compiler's process may hold the real runtime library, whose symbols would win.
SCRIPT = """
import json, sys
from pathlib import Path
from kgen.serve.launcher import Launcher
from kgen.serve.link import file_sha256, link
from kgen.serve.runtime import Runtime, find_runtime

folder = Path(sys.argv[1])
runtime = Runtime("cu12", folder / "libruntime_standin.so", find_runtime().tvm_ffi_library)
load = lambda n: Launcher(link(folder / n, file_sha256(folder / n), folder / "cache", runtime), "kgen_entry", runtime)
one, two = load("a.o"), load("b.o")
said = {"new": one.counts()}
for argument in (0, 1, 0, 3):
    one(argument)
said["one"], said["two"] = one.counts(), two.counts()
one.reset_counts()
said["reset"] = one.counts()
one(2)
said["unknown"] = one.counts()
print(json.dumps(said))
"""


def cc(*args: str) -> None:
    includes = [f"-I{folder / 'include'}" for folder in package_folders("tvm_ffi")]
    subprocess.run(["cc", "-O1", "-fPIC", *includes, *args], check=True)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    folder = tmp_path_factory.mktemp("counts")
    cc("-shared", "-o", str(folder / "libruntime_standin.so"), str(SUPPORT / "runtime_standin.c"))
    cc("-c", "-o", str(folder / "a.o"), str(SUPPORT / "launching.c"))
    cc("-c", "-DANOTHER", "-g", "-o", str(folder / "b.o"), str(SUPPORT / "launching.c"))
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def test_nothing_is_counted_before_the_first_call(said: dict[str, dict[str, int]]) -> None:
    assert said["new"] == {}


def test_launches_are_counted_by_kernel_name(said: dict[str, dict[str, int]]) -> None:
    assert said["one"] == {"kernel_one": 4, "kernel_two": 1}, "a launch that the runtime refused is not counted"


def test_two_objects_count_apart(said: dict[str, dict[str, int]]) -> None:
    assert said["two"] == {}


def test_a_reset_keeps_the_names(said: dict[str, dict[str, int]]) -> None:
    assert said["reset"] == {"kernel_one": 0, "kernel_two": 0}


def test_a_kernel_nobody_asked_for_shows_up(said: dict[str, dict[str, int]]) -> None:
    assert said["unknown"] == {"kernel_one": 1, "kernel_two": 0, "(unknown kernel)": 1}
