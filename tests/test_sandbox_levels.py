"""Commands in the sandbox: what they may not do, on every level that works here; choosing a level."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kgen.gates.sandbox import (
    LEVELS,
    Box,
    Finished,
    Level,
    Limits,
    available,
    choose,
    levels,
    run,
)
from kgen.gates.sandbox.levels import FIRST_UID, NOBODY, sandbox_uid

WORKS = {name: why for name, works, why in available()}
CAP = 100_000
Runner = Callable[..., Finished]


@pytest.fixture(params=list(LEVELS))
def level(request: pytest.FixtureRequest) -> Level:
    if WORKS[request.param]:
        pytest.skip(f"{request.param} does not work here: {WORKS[request.param]}")
    return LEVELS[request.param]


@pytest.fixture
def shell(level: Level, tmp_path: Path) -> Runner:
    folder = tmp_path / "job"
    folder.mkdir()
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    level.prepare(folder)

    def call(script: str, seconds: float = 20.0, limits: Limits | None = None, stdin: bytes = b"") -> Finished:
        box = Box(folder, env={"PATH": "/usr/bin:/bin", "GIVEN": "yes"}, limits=limits or Limits())
        return run(level, box, ["/bin/sh", "-c", script], seconds, CAP, stdin)

    return call


def test_the_folder_is_writable_and_nothing_else(shell: Runner, tmp_path: Path) -> None:
    places = ("/usr", "/etc", "/", "/dev/shm", str(Path.home()))
    done = shell(f"echo hi > mine && cat mine; for d in .. {' '.join(places)}; do echo x > $d/kgen-x; done")
    assert done.output.startswith(b"hi")
    assert (tmp_path / "job" / "mine").read_text() == "hi\n"
    assert [p.name for p in tmp_path.iterdir()] == ["job"]
    assert not any((Path(d) / "kgen-x").exists() for d in places)


def test_the_environment_is_exactly_what_was_given(shell: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    said = shell("env; cat /proc/*/environ").output
    assert b"GIVEN=yes" in said
    assert b"sk-secret" not in said


def test_home_folders_are_closed(shell: Runner) -> None:
    home = Path.home()
    assert not shell(f"cat {home}/.bashrc {home}/.profile /etc/passwd /etc/hostname 2>/dev/null").output


def test_there_is_no_network(shell: Runner) -> None:
    script = (
        'python3 -c \'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))\''
    )
    done = shell(script)
    assert done.returncode != 0
    assert b"PermissionError" in done.output or b"Network is unreachable" in done.output


def test_standard_input_arrives(shell: Runner) -> None:
    assert shell("cat", stdin=b"hello").output == b"hello"


def test_the_deadline_kills_a_loop(shell: Runner) -> None:
    started = time.monotonic()
    done = shell("while :; do :; done", seconds=1.0)
    assert done.timed_out
    assert time.monotonic() - started < 10


def test_processor_time_is_limited(shell: Runner) -> None:
    done = shell("while :; do :; done", limits=Limits(cpu_seconds=1), seconds=60)
    assert not done.timed_out
    assert done.returncode != 0


def test_output_is_capped_without_blocking(shell: Runner) -> None:
    done = shell("yes | head -c 5000000; exit 7")
    assert done.returncode == 7
    assert done.truncated
    assert len(done.output) == CAP


def test_endless_output_ends_at_the_deadline(shell: Runner) -> None:
    started = time.monotonic()
    done = shell("yes", seconds=1.0)
    assert done.timed_out and done.truncated
    assert time.monotonic() - started < 10


def test_memory_is_limited(shell: Runner) -> None:
    done = shell("python3 -c 'bytearray(1 << 30)'", limits=Limits(memory=512 << 20))
    assert b"MemoryError" in done.output


def test_files_are_limited_in_size(shell: Runner, tmp_path: Path) -> None:
    done = shell("head -c 3000000 /dev/zero > big", limits=Limits(file_bytes=1 << 20))
    assert done.returncode != 0
    assert (tmp_path / "job" / "big").stat().st_size <= 1 << 20


def test_a_segfault_is_seen(shell: Runner) -> None:
    done = shell("exec python3 -c 'import ctypes; ctypes.string_at(0)'")
    assert done.returncode in (139, -11)


def test_nothing_outlives_the_command(shell: Runner, level: Level, tmp_path: Path) -> None:
    if level.name == "landlock":
        pytest.skip("without a pid namespace a daemon lives on; what is untrusted may not start processes there at all")
    shell("setsid sh -c 'sleep 2; touch late' & exit 0")
    time.sleep(3)
    assert not (tmp_path / "job" / "late").exists()


def test_it_cannot_signal_the_judge(shell: Runner) -> None:
    done = shell(f"kill -0 {os.getpid()} || echo refused")
    assert b"refused" in done.output


def test_choose_takes_the_strongest_that_works() -> None:
    working = [name for name in LEVELS if not WORKS[name]]
    if not working:
        pytest.skip(f"no level works here: {WORKS}")
    assert choose().name == working[0]
    assert choose(working[-1]).name == working[-1]


def test_an_unknown_level_is_a_usage_error() -> None:
    with pytest.raises(ValueError, match="bwrap, unshare, landlock"):
        choose("docker")


def test_labels_carry_the_recipe_version(level: Level) -> None:
    assert level.label == f"{level.name}/2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a sandbox a user of its own")
def test_every_process_has_a_user_of_its_own_for_its_sandboxes(shell: Runner) -> None:
    """Processes are counted by user: what one sandbox uses up, another process's sandboxes must not miss."""
    told = "from kgen.gates.sandbox.levels import sandbox_uid; print(sandbox_uid())"
    other = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    mine = int(shell("id -u").output)
    assert mine == sandbox_uid() != int(other)
    assert min(mine, int(other)) > NOBODY


@pytest.mark.parametrize("spans, there", [("0 0 65536\n", False), ("0 100000 65536\n65536 7 2147000000\n", True)])
def test_where_a_user_namespace_has_no_such_users_it_is_nobody(
    spans: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uid_map").write_text(spans)
    monkeypatch.setattr(levels, "UID_MAP", tmp_path / "uid_map")
    uid = sandbox_uid.__wrapped__()
    assert uid == (FIRST_UID + os.getpid() if there else NOBODY)
