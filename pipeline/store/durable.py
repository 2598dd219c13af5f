"""Files that survive a crash: atomic replacement, locks, and the sweeping up of what a crash left.

Covered: a reader sees the old bytes or the new ones, never a mixture, also after SIGKILL, a full disk or a power cut
(temp file + fsync + rename + fsync of the folder); one writer at a time (flock).
Not covered: file systems without working flock or atomic rename, and media that lie about fsync.
"""

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kgen.store.errors import LockBusy, StoreError, storing

TEMP_PREFIX = ".tmp-"
LOCK_NAME = ".lock"
ORPHAN_SECONDS = 3600.0  # no write takes an hour: an older temp file belongs to a process that died
LOCK_SECONDS = 60.0  # a promotion holds its lock for milliseconds; longer means that something hangs
POLL_SECONDS = 0.02
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER_FSYNC = (errno.EINVAL, errno.ENOTSUP)  # file systems on which a folder cannot be synced

Step = Callable[[str], None]


def _unobserved(_: str) -> None:
    return None


def _beside(path: Path) -> Path:
    """A name in the same folder that no other process takes."""
    return path.parent / f"{TEMP_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"


class Durable:
    """Atomic writes. `step` is told the name of each step before it is taken, which is where tests kill a process."""

    def __init__(self, step: Step = _unobserved) -> None:
        self.step = step
        self._settled: set[Path] = set()  # folders whose names this process has seen to be on the medium

    def write(self, path: Path, data: bytes, mode: int = 0o666) -> None:
        """Replace `path` by `data`, or leave it as it was. `mode` is subject to the umask. Raises StoreError."""
        self.make_folder(path.parent)
        temp = _beside(path)
        with storing(path):
            try:
                self._fill(temp, data, mode)
                self.step("rename")
                temp.replace(path)
            except BaseException:
                with suppress(OSError):
                    temp.unlink()
                raise
            self.step("sync-folder")
            sync_folder(path.parent)
            self.step("written")

    def _fill(self, temp: Path, data: bytes, mode: int) -> None:
        self.step("create")
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            self.step("fill")
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            self.step("sync")
            os.fsync(handle)
        finally:
            os.close(handle)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents durably. Raises StoreError.

        One that is there may have been made by a process that died before its name was on the medium.
        """
        there = path.is_dir()
        if there and path in self._settled:
            return
        if not there:
            self.make_folder(path.parent)
        with storing(path, "write to" if there else "create folder"):
            if there:
                _settle(path)
            else:
                path.mkdir(exist_ok=True)
                sync_folder(path.parent)
        self._settled.add(path)

    def appear(self, path: Path, files: dict[str, tuple[bytes, int]]) -> None:
        """Create folder `path` with all its files (name -> bytes, mode) at once, or not at all.

        Raises StoreError, also when `path` exists.
        """
        self.make_folder(path.parent)
        temp = _beside(path)
        with storing(path, "create folder"):
            try:
                temp.mkdir()
                for name, (data, mode) in files.items():
                    self._fill(temp / name, data, mode)
                sync_folder(temp)
                self.step("rename")
                temp.rename(path)
            except BaseException:
                shutil.rmtree(temp, ignore_errors=True)
                raise
            self.step("sync-folder")
            sync_folder(path.parent)
            self.step("written")


DURABLE = Durable()


def sync_folder(path: Path) -> None:
    """fsync a folder, so that the names in it are on the medium."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_FOLDER_FSYNC:
            raise
    finally:
        os.close(handle)


def _settle(path: Path) -> None:
    """See to it that the name of a folder is on the medium, unless the folder it lies in is not ours to sync."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise


@contextmanager
def locked(folder: Path, wait: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the exclusive lock of a folder (file `.lock` in it, never removed). `wait` in seconds.

    Not re-entrant. The kernel drops the lock when the process dies. Raises LockBusy or StoreError.
    """
    path = folder / LOCK_NAME
    with storing(path, "lock"):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _acquire(handle, path, wait)
        yield
    finally:
        with suppress(OSError):  # nothing was written to it; the lock is gone either way
            os.close(handle)


def _acquire(handle: int, path: Path, wait: float) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                waited = f" (waited {wait:.0f} s)" if wait else ""
                raise LockBusy(path, f"{path.parent} is in use by another kgen process{waited}") from None
        except OSError as error:
            raise StoreError(path, f"cannot lock {path}: {error.strerror}") from error
        time.sleep(POLL_SECONDS)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock now. A folder that was never locked is free."""
    try:
        handle = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def sweep(folder: Path, older_than: float = ORPHAN_SECONDS, deep: bool = True) -> int:
    """Remove temp files and folders under `folder` that are older than `older_than` seconds; returns how many.

    Call it with the folder's lock held. `deep` False: only those that lie right in it. Files that vanish meanwhile,
    or may not be removed, are left alone.
    """
    removed, now = 0, time.time()
    for path in list(folder.rglob(f"{TEMP_PREFIX}*") if deep else folder.glob(f"{TEMP_PREFIX}*")):
        with suppress(OSError):
            if now - path.lstat().st_mtime < older_than:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed += 1
    return removed
