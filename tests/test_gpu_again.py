"""One command runs the cases of a GPU again: it packs, runs the very file that a bare host gets, and takes its result.

What only a GPU can do is done here by a file that writes what a host would have written.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runner_faults import compare, host
from runner_faults.kernels import EXPECTED, RIGHT, SOURCES
from support import again
from support.again import FOLDERS, Kind

from kgen.gates.kit_wheels import HERE
from kgen.serve.runtime import torch_flavour

ROOT = Path(__file__).parents[1]
WRITES = "import sys; open(sys.argv[1], 'w').write('what a GPU found'); sys.exit(1)"
REFUSES = "import sys; sys.stderr.write('no C compiler\\n'); sys.exit(3)"
WITHOUT = pytest.mark.skipif(torch_flavour() != "", reason="needs a torch without CUDA")


def packing(program: str, taken: list[str]) -> Kind:
    def carry(out: Path, pythons: Sequence[str], flavours: Sequence[str]) -> str:
        assert (pythons, flavours) == ((HERE,), (torch_flavour(),)), "for the machine at hand"
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("__main__.py", program)
        return "packed"

    def take(arguments: Sequence[str]) -> str:
        taken.append(Path(arguments[0]).read_text())
        return "red: a case"

    return Kind("exploits", "sm_90a", "result", carry, take)


def test_what_the_file_wrote_is_taken_even_where_cases_failed_and_red_stays_red() -> None:
    taken: list[str] = []
    assert again.again(packing(WRITES, taken)) == "red: a case"
    assert taken == ["what a GPU found"]


@pytest.mark.parametrize(("program", "status"), [(REFUSES, 3), ("import sys; sys.exit(137)", 137)])
def test_a_file_that_does_not_run_leaves_the_record_as_it_is(program: str, status: int) -> None:
    taken: list[str] = []
    assert again.again(packing(program, taken)).startswith(f"the file ended with status {status} and left no result")
    assert taken == []


@WITHOUT
@pytest.mark.parametrize("name", FOLDERS)
def test_without_a_gpu_one_line_says_which_commands_do_it(name: str) -> None:
    said = again.main((name,))
    assert said.startswith("no CUDA GPU here; for a host with one: ") and said.count(f"make {name}-gpu GPU_ARGS=") == 2
    assert "\n" not in said


@pytest.mark.parametrize("name", FOLDERS)
def test_each_kind_has_a_target_of_that_name_and_its_page_tells_the_way(name: str) -> None:
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\n{name}-gpu: $(VENV)/.dev\n\t@PYTHONPATH=tests " in make
    assert f"-m support.again {name} $(GPU_ARGS)\n" in make
    page = "ptx-truth.md" if name == "ptx-truth" else "threat-model.md"
    told = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    for way in ("`", " GPU_ARGS='pack ", " GPU_ARGS='take "):
        assert f"`make {name}-gpu{way}" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "usage: "),
        (("nothing",), "usage: "),
        (("exploits", "pack"), "usage: "),
        (("ptx-truth", "index"), "usage: "),
        (("exploits", "take", "/nowhere/result"), "/nowhere/result: there is no such file"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments: Sequence[str], said: str) -> None:
    assert again.main(arguments).startswith(said)


# --- what is taken of runner faults


def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compare.MEASURED.read_text(encoding="utf-8"))
    return found


def test_what_is_on_record_would_be_taken_again() -> None:
    assert compare.complaint(measured()) == ""


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("schema",), "other", "this is no result"),
        (("environment", "arch"), "sm_103a", "measured on sm_103a"),
        (("kernels", RIGHT, "source_sha256"), "0", f"{RIGHT} is another kernel now: {compare.AGAIN}"),
        (("steps", 1, "status"), "fail", f"{RIGHT}: ended as fail "),
        (("steps", 0, "code"), "numeric.error", "ended as fail numeric.error, must be fail "),
        (("steps", 0, "quarantined"), ["GPU-1"], "left a device in quarantine"),
        (("steps", 0, "lease_is_free"), False, "left a device in quarantine, or a lease"),
        (("steps", 0, "said"), [], "0 lines about the device, must be 1"),
        (("steps", 0, "said"), ["probe: not well, x"], "1 lines about the device, must be 1 of one that is well"),
    ],
)
def test_another_result_is_red(where: Sequence[Any], value: object, said: str) -> None:
    found = measured()
    place: Any = found
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    assert said in compare.complaint(found)


def test_a_result_without_its_last_step_is_red(tmp_path: Path) -> None:
    found = measured()
    del found["steps"][-1]
    (tmp_path / "r.json").write_text(json.dumps(found))
    assert compare.main([str(tmp_path / "r.json"), str(tmp_path)]).startswith("red: not every step was made")
    assert not (tmp_path / compare.MEASURED.name).exists()
    assert host.order(list(SOURCES), RIGHT)[-1] == RIGHT and set(EXPECTED) == set(SOURCES)
