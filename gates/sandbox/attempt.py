"""How a probe of the sandbox tries things: attempts that may be refused, and raw system calls by name.

Standard library only: it is imported inside the sandbox.
"""

import ctypes
import errno
import platform
from collections.abc import Callable
from typing import Any

from kgen.gates.sandbox import seccomp

Bait = dict[str, Any]  # what the judge laid out to be reached: see `conformance.py` of the builder
Attempts = dict[str, Callable[[], object]]
REFUSALS = (errno.EPERM, errno.ENOSYS, errno.EACCES)
COLUMN = {"x86_64": 0, "aarch64": 1}
NUMBERS = {**seccomp.NETWORK, **seccomp.SPY, **seccomp.KERNEL, **seccomp.OWN_ONLY}
NUMBERS |= {"clone": seccomp.CLONE, "clone3": seccomp.CLONE3, "fcntl": seccomp.FCNTL, "tgkill": seccomp.TGKILL}
NUMBERS |= {"fallocate": seccomp.FALLOCATE}
NUMBERS |= {"personality": seccomp.PERSONALITY}
libc = ctypes.CDLL(None, use_errno=True)


class Untried(Exception):
    """The probe has nothing to try itself on here."""


def call(name: str, *arguments: int) -> int:
    """A raw system call; its result, or minus the errno. Raises Untried on a machine without numbers."""
    machine = platform.machine()
    if machine not in COLUMN:
        raise Untried(f"the numbers of {machine}'s system calls are not known")
    number = NUMBERS[name][COLUMN[machine]]
    if number < 0:
        return -errno.ENOSYS
    got = int(libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments)))
    return got if got >= 0 else -ctypes.get_errno()


def through(attempts: Attempts) -> list[str]:
    """The names of the attempts that were not refused: those that neither raised nor gave a negative number."""
    done = []
    for name, attempt in attempts.items():
        try:
            got = attempt()
        except (OSError, MemoryError):
            continue
        if not (isinstance(got, int) and got < 0):
            done.append(name)
    return done
