"""The two ways a stored thing can let us down: the file system refuses, or the bytes are not what was written."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HINTS: Mapping[int, str] = {
    errno.ENOSPC: "free some space, or choose another place (--set, --runs, KGEN_CACHE)",
    errno.EDQUOT: "the quota is used up: free some space, or choose another place (--set, --runs, KGEN_CACHE)",
    errno.EFBIG: "the file size limit of this process is too low (ulimit -f)",
    errno.EROFS: "choose a writable place (--set, --runs, KGEN_CACHE)",
    errno.EACCES: "choose a place that you may write to (--set, --runs, KGEN_CACHE)",
    errno.EPERM: "choose a place that you may write to (--set, --runs, KGEN_CACHE)",
    errno.ENOENT: "check the path",
}


class StoreError(Exception):
    """The machine's fault, one line, with the path: disk full, read-only, no permission, locked by another process."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class LockBusy(StoreError):
    """Another process holds the lock."""


class IntegrityError(Exception):
    """Stored bytes are missing, damaged or do not belong together; one line that names the file."""


@contextmanager
def storing(path: Path, verb: str = "write") -> Iterator[None]:
    """Turns an OSError of the block into a StoreError that names `path` and says what to do."""
    try:
        yield
    except OSError as error:
        hint = HINTS.get(error.errno or 0, "")
        reason = error.strerror or str(error)
        raise StoreError(path, f"cannot {verb} {path}: {reason}" + (f"; {hint}" if hint else "")) from error
