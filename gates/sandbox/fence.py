"""The fence a process puts round itself: resource limits, no capabilities, Landlock, seccomp.

Standard library only: the build server imports it, and `python -I -S fence.py POLICY COMMAND...` applies a policy and
replaces itself by the command. Everything here is one-way and inherited by children.
Covered: writes and reads outside the given folders, TCP, and signals to outsiders (Landlock, as far as the kernel's
ABI goes); any socket, new processes, tracing, mounts and namespaces (seccomp, see `seccomp.py`); memory, CPU time,
file size, open files (rlimits). Not covered: wall time and the amount of output, which the parent watches
(`process.py`), and side channels.
"""

import ctypes
import json
import os
import resource
import stat
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

if __package__:
    from kgen.gates.sandbox import seccomp
else:  # started as a file with -I: the folder is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import seccomp  # type: ignore[import-not-found, no-redef]

GIB = 1 << 30
MIB = 1 << 20

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63  # prctl answers EINVAL for numbers that this kernel lacks

# Landlock: the same system call numbers on every architecture
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << i for i in range(6))
MAKE_DIR, MAKE_REG, TRUNCATE = 1 << 7, 1 << 8, 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | TRUNCATE  # no links, sockets or devices
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # by ABI
NET_TCP = 0b11  # bind and connect, from ABI 4
SCOPES = 0b11  # abstract sockets and signals, from ABI 6


@dataclass(frozen=True)
class Limits:
    """Bytes, seconds of CPU time and counts. 0: leave as it is."""

    memory: int = 4 * GIB  # address space: an ordinary compile peaks at 0.5 GiB
    file_bytes: int = 16 * MIB
    cpu_seconds: int = 30
    open_files: int = 256
    processes: int = 0  # counted per user: set it only where the sandbox has a user of its own


@dataclass(frozen=True)
class Policy:
    """What a fenced process may touch. Missing paths are skipped."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    landlock: bool = True
    seccomp: str = "job"  # "job": no new processes; "tool": may start programs; "": none
    drop_capabilities: bool = True
    die_with_parent: bool = True


class FenceError(OSError):
    """A part of the fence cannot be put up here."""


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise FenceError(code, f"{what}: {os.strerror(code)}")
    return result


def landlock_abi() -> int:
    """The kernel's Landlock ABI, 0 without Landlock."""
    return max(0, int(_libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= ON_FILES
        rule = _PathBeneath(rights, fd)
        _check(_libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0), f"landlock rule {path}")
    finally:
        os.close(fd)


def restrict_files(read: tuple[str, ...], write: tuple[str, ...]) -> int:
    """Put this thread and its children under Landlock. Returns the ABI used. Raises FenceError without Landlock."""
    abi = landlock_abi()
    if abi < 1:
        raise FenceError("this kernel has no Landlock")
    handled = HANDLED[min(abi, 5)]
    attributes = [handled, NET_TCP if abi >= 4 else 0, SCOPES if abi >= 6 else 0]
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    attr = (ctypes.c_uint64 * 3)(*attributes)
    ruleset = _check(_libc.syscall(CREATE_RULESET, attr, ctypes.c_size_t(size), 0), "landlock ruleset")
    try:
        for path in read:
            _allow(ruleset, path, READ & handled)
        for path in write:
            _allow(ruleset, path, WRITE & handled)
        _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _check(_libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)
    return abi


def drop_capabilities() -> None:
    """Give up every capability of this thread, for good."""
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(LAST_CAPABILITY + 1):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused without CAP_SETPCAP: then there is nothing to lose
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def limit_resources(limits: Limits) -> None:
    """Set soft and hard limits, never above the present hard limit."""
    wanted = {
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes,
    }
    for what, value in wanted.items():
        if value:
            hard = resource.getrlimit(what)[1]
            cap = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (cap, cap))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def apply(policy: Policy) -> None:
    """Put the whole fence round this process, which must still have a single thread. Raises FenceError."""
    if policy.die_with_parent:
        _check(_libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "die with parent")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    limit_resources(policy.limits)
    if policy.landlock:
        restrict_files(policy.read, policy.write)
    if policy.drop_capabilities:
        drop_capabilities()
    if policy.seccomp:
        seccomp.install(policy.seccomp)


def encode(policy: Policy) -> str:
    return json.dumps(asdict(policy))


def decode(text: str) -> Policy:
    body = json.loads(text)
    limits = Limits(**body.pop("limits"))
    return Policy(read=tuple(body.pop("read")), write=tuple(body.pop("write")), limits=limits, **body)


def main() -> None:
    """`fence.py POLICY COMMAND...`: exec COMMAND inside the fence."""
    apply(decode(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
