"""Temporary folders that say whose they are, so that those of killed processes can be told from those in use.

    leftovers.sweep("kgen-build", base)             removes what ended processes left in `base`
    leftovers.fresh("kgen-build", base) -> Path     a new private folder of this process

A name holds the owner's process number and start time: a number alone may be another process's by now, and an age says
nothing about a long run. Only folders of this user, boot and process namespace are judged, since another container or
machine may use the same place. Not covered: folders of an earlier boot, and systems without /proc (nothing is removed).
"""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from pathlib import Path

from kgen.gates.gpu.watchdog import started
from kgen.records import sha256_text


def fresh(kind: str, base: Path) -> Path:
    """A new folder of mode 0700 in `base`. Raises OSError where there can be none."""
    own = os.getpid()
    return Path(tempfile.mkdtemp(prefix=f"{kind}-{_here()}-{own}-{started(own)}-", dir=base))


def sweep(kind: str, base: Path) -> None:
    """Remove the folders of this kind whose owners have ended. What cannot be removed stays."""
    named = re.compile(rf"{re.escape(kind)}-{_here()}-(\d+)-(\d+)-\w+")
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            match = named.fullmatch(entry.name)
            if match and _own_folder(entry) and started(int(match[1])) != match[2]:
                shutil.rmtree(entry.path, ignore_errors=True)


def _own_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:  # another process has just removed it
        return False


@functools.cache
def _here() -> str:
    """Within what a process number means one process: this boot's namespace. "" where that cannot be said."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return sha256_text(boot + str(Path("/proc/self/ns/pid").readlink()))[:8]
    except OSError:
        return ""
