"""Runners that are forked from a warm process: what a fork has of its own, how it ends, and what is started cold."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgen.gates.runner import host, warm
from kgen.gates.runner.child import child_environment, command
from kgen.gates.runner.job import stock_spec
from kgen.ops import REGISTRY
from kgen.records import to_json

OP = REGISTRY.get("moe_shared")
SECONDS = 60.0


def head() -> list[str]:
    """Read anew: it names the path of modules, which other tests of this process may have lengthened."""
    return command(warm.RUNNER)


def job(fault: str = "") -> dict[str, Any]:
    spec = to_json(stock_spec(OP.problem(OP.pack.small, 1, "sm_90a"), fault))
    return {"items": [[0, spec]], "cache": "/nowhere", "device": "cpu", "seed": 1, "repetitions": 1}


def begun(folder: Path, fault: str = "hangs", **more: str) -> Any:
    """A runner in `folder`, and not waited for."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"kind": "rank", **job(fault)}))
    words = host.child_command(folder / "job.json", folder)
    with (folder / "log").open("wb") as log:
        return warm.start(words, {**child_environment(), **more}, folder, log, warm=True)


def fact(pid: int, number: int) -> int:
    """Of /proc/PID/stat, counted from the state (0): parent 1, session 3."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + SECONDS
    while not gone(pid):
        assert time.monotonic() < end, f"process {pid} goes on"
        time.sleep(0.02)


@pytest.fixture(autouse=True, scope="module")
def templates_of_these_tests() -> Iterator[None]:
    """Another file's may have been started with other variables: then runners start cold here."""
    before = dict(warm._templates)
    warm._templates.clear()
    yield
    for kept in [each for each in warm._templates.values() if each is not None]:
        warm.forget(kept)
    warm._templates.clear()
    warm._templates.update(before)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    both = begun(tmp_path / "a"), begun(tmp_path / "b")
    yield both
    for process in both:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL


def test_runners_without_a_gpu_are_forks_of_one_process_and_each_a_session_of_its_own(two: tuple[Any, Any]) -> None:
    first, second = two
    assert isinstance(first, warm.Forked) and isinstance(second, warm.Forked)
    assert first.pid != second.pid and fact(first.pid, 1) == fact(second.pid, 1) != os.getpid()
    assert [fact(p.pid, 3) for p in two] == [p.pid for p in two]


def test_a_fork_holds_no_descriptor_but_its_own(two: tuple[Any, Any]) -> None:
    """Nothing of another runner, of the requests or of the judge: standard streams and what it has opened itself."""
    for process in two:
        place = Path(f"/proc/{process.pid}")
        links = {entry.name: str(entry.readlink()) for entry in (place / "fd").iterdir()}
        assert not [link for link in links.values() if link.startswith(("socket:", "anon_inode:"))]
        assert links["1"] == links["2"] == f"{(place / 'cwd').readlink()}/log"


def test_one_that_is_killed_leaves_the_other_running_and_the_template_ready(
    two: tuple[Any, Any], tmp_path: Path
) -> None:
    extra = begun(tmp_path / "c")
    os.kill(extra.pid, signal.SIGKILL)
    assert extra.wait(SECONDS) == -signal.SIGKILL == extra.poll()
    assert [p.poll() for p in two] == [None, None]
    with host.running("rank", job(), deadline=SECONDS) as outcome:
        assert (outcome.status, outcome.died) == ("done", False)


def test_waiting_for_one_that_goes_on_ends_in_time(two: tuple[Any, Any]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        two[0].wait(0.05)


@pytest.mark.parametrize("name", ["TORCH_LOGS_OUT", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"])
def test_other_variables_that_are_read_at_the_start_are_an_interpreter_of_its_own(name: str, tmp_path: Path) -> None:
    assert warm.template(head(), child_environment()) is not None
    process = begun(tmp_path / "a", **{name: "/nowhere"})
    assert isinstance(process, subprocess.Popen)
    process.kill()
    process.wait()


def test_another_path_of_modules_or_another_command_is_an_interpreter_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = head()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert head() != before
    with (tmp_path / "log").open("wb") as log:
        process = warm.start(["sh", "-c", "exit 3"], child_environment(), tmp_path, log, warm=True)
    assert isinstance(process, subprocess.Popen) and process.wait() == 3


def test_a_template_that_was_killed_takes_its_forks_with_it_and_another_follows(tmp_path: Path) -> None:
    process = begun(tmp_path / "a")
    assert isinstance(process, warm.Forked)  # else its parent is this process
    os.kill(fact(process.pid, 1), signal.SIGKILL)
    assert process.wait(SECONDS) == -signal.SIGKILL
    wait_until_gone(process.pid)
    after = begun(tmp_path / "b", fault="")
    assert isinstance(after, warm.Forked) and after.wait(SECONDS) == 0


JUDGE = """
import sys
from pathlib import Path
from test_runner_warm import begun
from kgen.gates.runner import warm
process = begun(Path(sys.argv[1]))
assert isinstance(process, warm.Forked)
print(process.pid, flush=True)
process.wait()
"""


def test_a_fork_and_the_template_end_with_a_judge_that_is_killed(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:] = {[str(Path(__file__).parent), *sys.path]!r}\n{JUDGE}"
    words = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "a")]
    judge = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None
    pid = int(judge.stdout.readline())
    parent = fact(pid, 1)
    judge.kill()
    judge.communicate()
    wait_until_gone(pid)
    wait_until_gone(parent)


PREPARED = """
import json, os, sys, tempfile
from kgen.gates.runner import template
threads = template.prepare()
import torch
tempfile.gettempdir()
log = os.open(sys.argv[1] + "/log", os.O_WRONLY | os.O_CREAT)
if os.fork() == 0:  # as the template does: a group's leader cannot begin a session
    request = {"environment": {"TMPDIR": sys.argv[1], "A": "1"}, "folder": sys.argv[1]}
    template.become(request, log)
    facts = [dict(os.environ), os.getcwd(), tempfile.gettempdir(), os.getsid(0) == os.getpid()]
    print(json.dumps([threads, torch.cuda.is_initialized(), "kgen.gates.runner.interpreted" in sys.modules, *facts]))
else:
    os.wait()
"""


def test_what_is_forked_has_one_thread_all_imports_no_cuda_and_becomes_what_was_asked(tmp_path: Path) -> None:
    env, place = {**child_environment(), **warm.ONE_THREAD}, str(tmp_path)
    subprocess.run([sys.executable, "-I", "-W", "ignore", "-c", PREPARED, place], env=env, check=True, timeout=SECONDS)
    variables = {"TMPDIR": place, "A": "1"}
    assert json.loads((tmp_path / "log").read_text()) == [1, False, True, variables, place, place, True]
