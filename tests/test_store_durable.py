"""Atomic writes, locks and sweeping, on a real file system, with real kills and a really full disk."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.limits import file_size_limit, read_only, small_disk

from kgen.store import DURABLE, Durable, LockBusy, StoreError, locked, sweep
from kgen.store.durable import TEMP_PREFIX, is_locked

STEPS = ("create", "fill", "sync", "rename", "sync-folder", "written")

KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from kgen.store import Durable
def step(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
Durable(step).write(Path(sys.argv[1]), b"new" * 1000)
"""

HOLDER = """
import sys, time
from pathlib import Path
from kgen.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(f"{TEMP_PREFIX}*"))


def test_write_replaces_and_creates_missing_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file with spaces é"
    DURABLE.write(path, b"one")
    DURABLE.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_write_takes_every_step_in_order(tmp_path: Path) -> None:
    seen: list[str] = []
    Durable(seen.append).write(tmp_path / "f", b"x")
    assert tuple(seen) == STEPS


@pytest.mark.parametrize("step", STEPS)
def test_sigkill_at_each_step_leaves_the_old_bytes_or_the_new(tmp_path: Path, step: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path), step], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == (b"old" if STEPS.index(step) <= STEPS.index("rename") else b"new" * 1000)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_write_sets_the_asked_mode(tmp_path: Path, mode: int) -> None:
    DURABLE.write(tmp_path / "key", b"secret", mode)
    assert (tmp_path / "key").stat().st_mode & 0o777 & ~mode == 0


def test_full_disk_is_one_clear_error_and_leaves_the_old_bytes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        DURABLE.write(disk / "file", b"old")
        with pytest.raises(StoreError) as caught:
            DURABLE.write(disk / "file", b"n" * (1 << 20))
        assert caught.value.path == disk / "file"
        assert "No space left" in str(caught.value) and "\n" not in str(caught.value)
        assert (disk / "file").read_bytes() == b"old"
        assert leftovers(disk) == []


def test_file_size_limit_is_one_clear_error_and_leaves_the_old_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(StoreError, match="File too large"), file_size_limit(4096):
        DURABLE.write(path, b"n" * 10_000)
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "shut"
    folder.mkdir()
    with pytest.raises(StoreError, match="Permission denied") as caught, read_only(folder):
        DURABLE.write(folder / "file", b"x")
    assert caught.value.path == folder / "file"


def test_a_parent_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreError):
        DURABLE.write(tmp_path / "file" / "below", b"x")


def test_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(name: str) -> None:
        if name == "rename":
            raise Stop

    files = {"a": (b"1", 0o666), "b": (b"2", 0o600)}
    with pytest.raises(Stop):
        Durable(stop).appear(tmp_path / "run", files)
    assert list(tmp_path.iterdir()) == []
    DURABLE.appear(tmp_path / "run", files)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == {"a": b"1", "b": b"2"}
    with pytest.raises(StoreError):
        DURABLE.appear(tmp_path / "run", files)
    assert leftovers(tmp_path) == []


def test_lock_excludes_another_process_and_dies_with_it(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert is_locked(tmp_path)
        with pytest.raises(LockBusy, match="in use by another kgen"), locked(tmp_path, wait=0.1):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path, wait=1.0):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_lock_excludes_within_one_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(LockBusy), locked(tmp_path, wait=0.0):
        pass


def test_sweep_removes_old_orphans_and_nothing_else(tmp_path: Path) -> None:
    old, young, folder = (tmp_path / f"{TEMP_PREFIX}{n}" for n in ("old", "young", "folder"))
    folder.mkdir()
    (folder / "inside").write_bytes(b"x")
    for path in (old, young, tmp_path / "kept"):
        path.write_bytes(b"x")
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    link = tmp_path / f"{TEMP_PREFIX}link"
    link.symlink_to(outside)
    before = time.time() - 2 * 3600
    for path in (old, folder, tmp_path / "kept", link):
        os.utime(path, (before, before), follow_symlinks=False)
    assert sweep(tmp_path) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{TEMP_PREFIX}young", "kept"]
    assert (outside / "file").exists()
