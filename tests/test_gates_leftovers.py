"""Folders of killed judges are removed by the next one, and nobody else's: not a living one's, however old it is."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kgen.gates import leftovers
from kgen.gates.builder.pool import Builder
from kgen.gates.gpu.watchdog import started
from kgen.gates.runner.host import private_folder

KIND = "kgen-test"
ENDLESS = """
from kgen.gates.builder.pool import Builder
from kgen.gates.signature import signature
from kgen.ops import REGISTRY

op = REGISTRY.get("moe_shared")
builder = Builder()
print(builder.root, flush=True)
builder.build("while True:\\n    pass\\n", signature(op, op.problem("nano", 1, "sm_90a")))
"""
RUNS = """
import time
from kgen.gates.runner.host import private_folder

folder = private_folder()
(folder / "tensors.bin").write_bytes(bytes(1000))
print(folder, flush=True)
time.sleep(600)
"""


def begun(script: str, temp: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A judge, and the folder that it has made."""
    environment = {**os.environ, "TMPDIR": str(temp)}
    command = [sys.executable, "-W", "ignore", "-c", script]
    judge = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert judge.stdout is not None
    return judge, Path(judge.stdout.readline().strip())


def killed(judge: "subprocess.Popen[str]") -> None:
    judge.send_signal(signal.SIGKILL)
    judge.communicate()


def test_what_a_killed_judge_was_building_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    judge, folder = begun(ENDLESS, tmp_path)
    try:
        while not (folder / "1" / "candidate.py").exists():
            assert judge.poll() is None
            time.sleep(0.02)
        with Builder() as beside:
            assert folder.is_dir() and beside.root.is_dir(), "its owner lives"
    finally:
        killed(judge)
    assert folder.is_dir(), "nobody was there to remove it"
    with Builder() as following:
        assert list(tmp_path.iterdir()) == [following.root]


def test_what_a_killed_judge_was_running_is_removed_by_the_next(tmp_path: Path) -> None:
    judge, folder = begun(RUNS, tmp_path)
    try:
        private_folder().rmdir()
        assert (folder / "tensors.bin").exists(), "its owner lives"
    finally:
        killed(judge)
    private_folder().rmdir()
    assert not folder.exists()


def named(base: Path, pid: int, born: str, here: str = leftovers._here()) -> Path:
    path = base / f"{KIND}-{here}-{pid}-{born}-abc_1234"
    path.mkdir()
    os.utime(path, (0, 0))
    return path


def test_only_folders_whose_owner_has_ended_are_removed(tmp_path: Path) -> None:
    me, born = os.getpid(), started(os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    was = started(ended.pid) or "1"
    ended.wait()
    dead = [named(tmp_path, ended.pid, was), named(tmp_path, me, str(int(born) + 1))]
    (dead[0] / "held").mkdir()
    kept = [
        leftovers.fresh(KIND, tmp_path),
        named(tmp_path, me, born),  # of 1970, and in use
        named(tmp_path, ended.pid, was, "0" * 8),  # of another namespace, where the number means another process
        tmp_path / f"{KIND}-abc_1234",
    ]
    kept[-1].mkdir()
    (link := tmp_path / dead[1].name.replace("abc_", "abd_")).symlink_to(kept[-1])
    leftovers.sweep(KIND, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*kept, link])
    leftovers.sweep("kgen-tes", tmp_path)
    leftovers.sweep(KIND, tmp_path / "nowhere")
    assert len(list(tmp_path.iterdir())) == len(kept) + 1


def test_a_fresh_folder_is_private_and_names_its_owner(tmp_path: Path) -> None:
    made = leftovers.fresh(KIND, tmp_path)
    assert made.stat().st_mode & 0o777 == 0o700
    assert f"-{os.getpid()}-{started(os.getpid())}-" in made.name
