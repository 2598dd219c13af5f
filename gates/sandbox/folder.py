"""How much a sandboxed process has left in its folder. Standard library only: the build server imports it.

Not covered: files that are open and deleted. A job cannot make them (`seccomp.py`), a tool can.
"""

import contextlib
import os
from collections.abc import Iterator

FOLDER_BYTES = 64 << 20  # more than any build leaves
FOLDER_ENTRIES = 256


def too_full(folder: str) -> bool:
    """Whether there are more files or bytes than any build leaves. Files may vanish while we look."""
    total = 0
    for number, entry in enumerate(_entries(folder)):
        with contextlib.suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_blocks * 512
        if number > FOLDER_ENTRIES or total > FOLDER_BYTES:
            return True
    return False


def _entries(folder: str) -> Iterator["os.DirEntry[str]"]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)
