"""The folder that all kgen processes of a host share, and files in it that any user may rewrite in place.

It is the first of PLACES that everybody may write to, the same answer for every user; KGEN_GPU_FOLDER overrides. In a
sticky folder nobody may replace another user's file, so contents are written into the file that is there; a reader
that comes in between finds no record. Both places are emptied by a reboot, and so is what they say about GPUs.
Not covered: containers that do not share the folder, network file systems, and users who mean harm (a lock can be kept
for ever, a record made up).
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from kgen.records import RecordError, from_json, to_json
from kgen.store.errors import StoreError, storing

R = TypeVar("R")
VARIABLE = "KGEN_GPU_FOLDER"
PLACES = (Path("/run/lock"), Path("/tmp"))
NAME = "kgen-gpu"
OPEN_TO_ALL = 0o1777
MAX_BYTES = 1 << 16


def folder() -> Path:
    """Made where it is missing. Raises StoreError."""
    chosen = os.environ.get(VARIABLE, "")
    path = Path(chosen).expanduser().absolute() if chosen else _base() / NAME
    with storing(path, "create folder"):
        try:
            path.mkdir(parents=bool(chosen))
            path.chmod(OPEN_TO_ALL)  # past the umask: other users are to find the same files
        except FileExistsError:
            pass
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise StoreError(path, f"{path} is not a folder: remove it, or choose another with {VARIABLE}")
    return path


def _base() -> Path:
    for place in PLACES:
        try:
            if place.stat().st_mode & OPEN_TO_ALL == OPEN_TO_ALL:
                return place
        except OSError:
            continue
    return PLACES[-1]


def opened(path: Path) -> int:
    """A descriptor to read and write an existing or new file, whoever made it. Raises StoreError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with storing(path, "open"):
        for _ in range(2):
            try:
                return os.open(path, flags)  # without O_CREAT: Linux refuses that for other users' files in such places
            except FileNotFoundError:
                pass
            try:
                handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue  # another process was faster
            os.fchmod(handle, 0o666)
            return handle
    raise StoreError(path, f"cannot open {path}: it comes and goes")


def put(handle: int, record: Any) -> None:
    """The record as the file's only contents; None empties it."""
    data = b"" if record is None else json.dumps(to_json(record), sort_keys=True).encode() + b"\n"
    os.ftruncate(handle, 0)
    os.pwrite(handle, data, 0)


def read(cls: type[R], path: Path) -> R | None:
    """The record in a file; None where there is none, or none that is whole."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
        return from_json(cls, json.loads(data)) if data else None
    except (OSError, ValueError, RecordError):
        return None
