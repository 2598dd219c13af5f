"""What is made of compute-sanitizer's reports. A script in its place runs the job and says what the tool would.

The job is the same in all tests: one of them runs it, the others' scripts leave what it left.
"""

from pathlib import Path

import pytest

from kgen.gates import sanitizer
from kgen.gates.runner.job import stock_spec
from kgen.ops import REGISTRY

OP = REGISTRY.get("mla_out_gate")
OVERFLOW = "Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect."
BARRIER = "Barrier error detected. Divergent thread(s) in block."
RUN = '"$@"\n'


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a script does in place of running the job, whose folder is its last argument: the files of a run."""
    place = tmp_path_factory.mktemp("ran")
    keep = f'{RUN}code=$?\nfor last; do :; done\ncp -r "$last/." "{place}/"\n(exit $code)\n'
    assert run(place.parent, "memcheck", tool(place.parent, errors=0, work=keep))["status"] == "pass"
    assert (place / "result.json").is_file()
    (place / "log").unlink()
    return f'for last; do :; done\ncp -r "{place}/." "$last/"\n'


def tool(folder: Path, *lines: str, errors: int, work: str = RUN) -> str:
    """A program that takes the tool's options, does the work that follows, and reports."""
    path = folder / "compute-sanitizer"
    said = "\n".join(f"========= {line}" for line in ("COMPUTE-SANITIZER", *lines, f"ERROR SUMMARY: {errors} errors"))
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > "{folder}/asked"\n'
        'while [ $# -gt 0 ]; do case "$1" in --*) shift 2 ;; *) break ;; esac; done\n'
        f"{work}"
        f"code=$?\ncat <<'END'\n{said}\nEND\nexit $code\n"
    )
    path.chmod(0o755)
    return str(path)


def run(folder: Path, name: str, program: str) -> dict[str, object]:
    spec = stock_spec(OP.problem("nano", 2, "sm_90a"))
    return sanitizer._run_tool(program, name, OP, [spec], folder / "cache", "cpu")


@pytest.mark.parametrize(
    "name", [pytest.param(t, marks=[pytest.mark.deep] * (t not in ("memcheck", "synccheck"))) for t in sanitizer.TOOLS]
)
def test_a_clean_report_is_a_pass_that_is_remembered(tmp_path: Path, name: str, ran: str) -> None:
    program = tool(tmp_path, errors=0, work=ran)
    assert run(tmp_path, name, program)["status"] == "pass"
    asked = (tmp_path / "asked").read_text()
    assert f"--tool {name}" in asked and ("--num-cuda-barriers" in asked) is (name == "synccheck")
    again = run(tmp_path, name, "/nowhere")
    assert again["status"] == "pass" and again["earlier"] == 1


@pytest.mark.parametrize("errors", [0, 1])  # whether the tool counts its warning
def test_barriers_that_the_tool_cannot_follow_are_its_limit_and_no_error_of_the_kernel(
    tmp_path: Path, errors: int, ran: str
) -> None:
    found = run(tmp_path, "synccheck", tool(tmp_path, OVERFLOW, "", errors=errors, work=ran))
    assert found["status"] == "skip" and "more barriers" in str(found["reason"])
    assert sanitizer.complaints({"synccheck": found}) == []
    if errors:
        assert run(tmp_path, "synccheck", tool(tmp_path, errors=0, work=ran))["status"] == "pass", (
            "a skip is not remembered"
        )


BESIDE = [((OVERFLOW, BARRIER), 2), ((BARRIER, OVERFLOW), 1)]
MORE = [((BARRIER,), 1), ((BARRIER,), 2), ((OVERFLOW, BARRIER), 1), ((BARRIER, OVERFLOW), 2)]


@pytest.mark.parametrize(("lines", "errors"), [*BESIDE, *(pytest.param(*row, marks=pytest.mark.deep) for row in MORE)])
def test_an_error_beside_it_still_counts(tmp_path: Path, lines: tuple[str, ...], errors: int, ran: str) -> None:
    found = run(tmp_path, "synccheck", tool(tmp_path, *lines, errors=errors, work=ran))
    assert found["status"] == "fail" and found["errors"] == errors
    (said,) = sanitizer.complaints({"synccheck": found})
    assert said.startswith(f"synccheck: {errors} errors: ")
