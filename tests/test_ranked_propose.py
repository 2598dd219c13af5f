"""Ops of several ranks through the command line: proposed, built, interpreted on all ranks, staged or refused.

Real compiler, sandbox and interpreter, at nano's sizes. Not covered: GPUs; the gates say here what they lack.
"""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from support.builds import CANDIDATES
from support.loops import SECONDS, kgen, started, the_run
from support.ranked_faults import MISTAKES_ONE_SHOT

from kgen.cli import boundary
from kgen.contract.ranks import PAIR_SENTINEL
from kgen.diagnosis.numeric import FIXES, RULES
from kgen.gates.ranks.__main__ import MISSING
from kgen.gates.ranks.pack import ENTRY
from kgen.loop.history import builds_of
from kgen.records import GateResult, Status, SymmetricBuffer

OP = "ranked_allreduce_residual"
POINT = ("--op", OP, "--arch", "sm_90a", "--dims", "nano", "--tokens", "1")
SOURCE = (CANDIDATES / "allreduce_one_shot.py").read_text()


def proposed(home: Path, source: str) -> "subprocess.CompletedProcess[str]":
    """`kgen propose --proposer mailbox`, answered with this source once the question lies there."""
    desk = home / "desk"
    more = ("--proposer", "mailbox", "--mailbox", str(desk), "--rounds", "1", "--candidates", "1", "--quiet")
    process = started(home, "propose", *POINT, *more)
    while not (desk / "0001-prompt.md").is_file() and process.poll() is None:
        time.sleep(0.05)
    (desk / "draft").write_text(source)
    (desk / "draft").rename(desk / "0001-answer.py")
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(POINT, process.wait(), out, err)


def results(home: Path) -> dict[str, GateResult]:
    (folder,) = the_run(home).folders()
    verdict = folder.verdict()
    assert verdict is not None
    return {r.gate: r for r in verdict.results}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def staged(home: Path) -> "subprocess.CompletedProcess[str]":
    return proposed(home, SOURCE)


def test_a_right_exchange_is_staged_by_all_ranks_in_the_interpreter(
    home: Path, staged: "subprocess.CompletedProcess[str]"
) -> None:
    assert staged.returncode == boundary.OK, staged.stderr
    found = results(home)
    numbers = found["unit-numeric"]
    assert found["compile"].passed and (numbers.status, numbers.code) == (Status.PASS, "numeric.ptx_pass")
    assert numbers.interpreted and "no finding" in numbers.message
    (orders,) = numbers.evidence["orders"].values()
    assert orders["normal"][:2] == [0, 1] and all(len(set(drawn)) >= 2 for drawn in orders.values())
    assert {row["what"] for row in numbers.evidence["table"]} == set(numbers.evidence["families"])
    assert ": staged" in (home / "desk" / "0001-verdict.md").read_text().splitlines()[0]


def test_gates_that_need_gpus_say_how_many(home: Path, staged: "subprocess.CompletedProcess[str]") -> None:
    found = results(home)
    for gate, code in (("full-model-eval", "fullmodel.no_gpu"), ("perf-sweep", "perf.no_gpu")):
        assert (found[gate].status, found[gate].code) == (Status.SKIP, code)
        assert "needs 2 GPUs of one host, here are 0; next: kgen kit" in found[gate].message


def test_the_run_keeps_what_was_declared_and_the_prompt_asked_for_it(
    home: Path, staged: "subprocess.CompletedProcess[str]"
) -> None:
    (folder,) = the_run(home).folders()
    (build,) = builds_of(folder)
    assert build.symmetric == (SymmetricBuffer("box", "bf16", (2, 1, 256), 2, PAIR_SENTINEL),)
    prompt = (home / "desk" / "0001-prompt.md").read_text()
    assert "This run builds at: ranks=2" in prompt and "symmetric(dims, tokens, arch)" in prompt
    report = (the_run(home).path / "report.md").read_text()
    assert "kgen kit" in report and "kgen ingest" not in report  # what a kit of ranks writes is a record to read


def test_a_missing_fence_is_refused_with_the_rule_and_what_mends_it(tmp_path: Path) -> None:
    done = proposed(tmp_path, MISTAKES_ONE_SHOT["missing fence"].source)
    assert done.returncode == boundary.FAILED, done.stderr
    numbers = results(tmp_path)["unit-numeric"]
    assert (numbers.status, numbers.code) == (Status.FAIL, "numeric.mailbox")
    told = (tmp_path / "desk" / "0001-verdict.md").read_text()
    assert "refused at `unit-numeric` with `numeric.mailbox`" in told
    assert "unordered" in told and RULES["unordered"] in told and "box@" in told


def test_one_gate_on_a_file_names_who_waits_for_whom(home: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft.py"
    draft.write_text(MISTAKES_ONE_SHOT["a rank that nobody sends to"].source)
    point = ("--op", OP, "--tokens", "1")
    done = kgen(home, "gate", "unit-numeric", str(draft), *point, "--device", "ptx")
    assert done.returncode == boundary.FAILED and "numeric.wait" in done.stdout, done.stderr
    assert "deadlock: rank 0, call" in done.stdout and "nobody has sent it" in done.stdout
    assert FIXES["wait"].startswith("nobody sends")
    done = kgen(home, "gate", "perf-sweep", str(draft), *point, "--dims", "nano")
    assert done.returncode == boundary.ENVIRONMENT and "perf.no_gpu" in done.stdout
    assert "needs 2 GPUs of one host, here are 0" in done.stdout


def test_a_kit_of_the_run_carries_the_runner_and_says_what_a_host_lacks(
    home: Path, staged: "subprocess.CompletedProcess[str]"
) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    file = home / "ranks.pyz"
    made = kgen(home, "kit", "latest", "-o", str(file), "--python", here, "--flavour", "cu12")
    assert made.returncode == boundary.OK and "1 points, 2 ranks" in made.stdout, made.stderr
    (folder,) = the_run(home).folders()
    (build,) = builds_of(folder)
    with zipfile.ZipFile(file) as archive:
        table = json.loads(archive.read("kit.json"))
    assert table["entry"] == ENTRY and f"objects/{build.object_sha256}.o" in {f["path"] for f in table["files"]}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == MISSING and done.stderr.count("\n") == 1 and "no CUDA GPU" in done.stderr
