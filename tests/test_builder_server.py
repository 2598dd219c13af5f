"""The warm server: parallel jobs, restarts, determinism, and what the judge reads from a job folder."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.builds import build_launch, launch_signature

from kgen.gates.builder import outcome
from kgen.gates.builder.outcome import BuilderError, BuildFailure, Built, collect
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import OBJECT, RESULT, JobEnd
from kgen.gates.sandbox import Limits

SOURCE = (Path(__file__).parent / "candidates" / "launches.py").read_text()


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    with Builder() as made:
        yield made


def test_the_same_source_gives_the_same_bytes(builder: Builder) -> None:
    first = build_launch(builder, "tma")
    with Builder() as other:
        second = build_launch(other, "tma")
    assert (first.object, first.cubin, first.ptx) == (second.object, second.cubin, second.ptx)


def test_hash_seeds_do_not_reach_the_code(builder: Builder) -> None:
    source = SOURCE.replace("* scale", '* scale * Float32(hash("seed") % 1000)')
    assert source != SOURCE
    with Builder() as other:
        built = [b.build(source, launch_signature("pdl")) for b in (builder, other)]
    assert isinstance(built[0], Built) and isinstance(built[1], Built)
    assert built[0].object == built[1].object


def test_a_closed_builder_builds_nothing() -> None:
    with Builder() as builder:
        pass
    with pytest.raises(BuilderError, match="closed"):
        builder.build(SOURCE, launch_signature("pdl"))


def test_jobs_run_side_by_side_on_one_server(builder: Builder) -> None:
    kinds = ["pdl", "cluster", "cooperative", "smem"]
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda kind: build_launch(builder, kind), kinds))
    assert [build_launch(builder, kind).object for kind in kinds] == [b.object for b in built]
    assert builder.starts == 1


def test_a_killed_server_is_started_again(builder: Builder) -> None:
    build_launch(builder, "pdl")
    before = builder.starts
    for pid in _children(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    assert isinstance(builder.build(SOURCE, launch_signature("pdl")), Built)
    assert builder.starts == before + 1


def test_closing_ends_the_servers_and_removes_the_folder() -> None:
    with Builder() as builder:
        build_launch(builder, "pdl")
        assert builder.root.is_dir()
        running = _children(os.getpid())
    assert not builder.root.exists()
    assert len(_children(os.getpid())) < len(running)


def test_a_missing_compiler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgen.gates.builder.warm.PACKAGES", ("no_such_compiler",))
    with Builder() as builder, pytest.raises(BuilderError, match="pip install"):
        builder.build(SOURCE, launch_signature("pdl"))


def _end(**changes: object) -> JobEnd:
    fields = {"returncode": 0, "timed_out": False, "flooded": False, "seconds": 1.0, "fenced": True}
    return JobEnd(**{**fields, "output": "", **changes})  # type: ignore[arg-type]


def test_a_job_without_its_fence_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(BuilderError, match="fence"):
        collect(tmp_path, _end(fenced=False, output="job: FenceError: no"), Limits())


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"ok": true}', '{"ok": true, "workspaces": 3, "design": 1}'])
def test_a_broken_result_is_the_candidates_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULT).write_text(text)
    got = collect(tmp_path, _end(), Limits())
    assert isinstance(got, BuildFailure)
    assert got.code == "compile.output"


SAID = [  # what an ended job says: code, message, whether every other build would end so
    ("compile.dsl", "NameError: name 'x' is not defined", True),
    ("compile.ptxas", "PTX assembly failed: Unknown symbol 'bogus'", True),
    ("compile.recursion", "RecursionError: maximum recursion depth exceeded", True),
    ("compile.dsl", "PermissionError: [Errno 13] Permission denied: 'tmp/x'", False),
    ("compile.dsl", "OSError: [Errno 28] No space left on device", False),
    ("compile.build", "BlockingIOError: [Errno 11] Resource temporarily unavailable", False),
    ("compile.name", "ImportError: libx.so: failed to map segment from shared object", False),
    ("compile.nvvm", "LLVM ERROR: pthread_create failed: Resource temporarily unavailable", False),
    ("compile.ptxas", "PTX assembly failed: ptxas fatal : Memory allocation failure", False),
    ("compile.memory", "the job's memory is used up", False),
]


@pytest.mark.parametrize(("code", "message", "lasts"), SAID)
@pytest.mark.parametrize("printed", [False, True], ids=["raised", "printed beside it"])
def test_a_failure_lasts_when_its_words_name_no_resource(
    tmp_path: Path, code: str, message: str, lasts: bool, printed: bool
) -> None:
    (tmp_path / RESULT).write_text(json.dumps({"ok": False, "code": code, "message": "no" if printed else message}))
    got = collect(tmp_path, _end(returncode=1, output=message if printed else ""), Limits())
    assert isinstance(got, BuildFailure)
    assert (got.code, got.lasts) == (code, lasts)
    assert message in got.message


ENDED = {  # how a job did not end by itself -> code
    "compile.timeout": {"returncode": -9, "timed_out": True},
    "compile.output": {"returncode": -9, "flooded": True},
    "compile.crash.SIGABRT": {"returncode": -6, "output": "LLVM ERROR: pthread_create failed"},
    "compile.crash.SIGSEGV": {"returncode": -11},
    "compile.crash.SIGKILL": {"returncode": -9},
    "compile.memory": {"returncode": -6, "output": "terminate called after throwing 'std::bad_alloc'"},
}


@pytest.mark.parametrize("code", ENDED)
def test_what_did_not_end_by_itself_does_not_last(tmp_path: Path, code: str) -> None:
    (tmp_path / RESULT).write_text('{"ok": false, "code": "compile.dsl", "message": "left by the candidate"}')
    got = collect(tmp_path, _end(**ENDED[code]), Limits())
    assert isinstance(got, BuildFailure)
    assert (got.code, got.lasts) == (code, False)


def test_time_of_the_cpu_and_a_missing_result_do_not_last(tmp_path: Path) -> None:
    ends = [_end(returncode=-24), _end(returncode=70, output="job: OSError: [Errno 28] No space left on device")]
    got = [collect(tmp_path, end, Limits()) for end in ends]
    assert [(f.code, f.lasts) for f in got if isinstance(f, BuildFailure)] == [
        ("compile.timeout", False),
        ("compile.output", False),
    ]


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / RESULT).symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        outcome.read_regular(tmp_path, RESULT)
    os.mkfifo(tmp_path / OBJECT)
    with pytest.raises(ValueError, match="regular"):
        outcome.read_regular(tmp_path, OBJECT)


def test_an_oversized_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / RESULT).open("wb") as file:
        file.truncate(outcome.CAPS[RESULT] + 1)
    with pytest.raises(ValueError, match="larger"):
        outcome.read_regular(tmp_path, RESULT)


def _children(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    me = {int(line) for line in done.stdout.split()}
    return sorted(p for p in me if "kgen" in _command(p) or "bwrap" in _command(p) or "fence" in _command(p))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
