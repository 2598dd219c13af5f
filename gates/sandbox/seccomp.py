"""A seccomp filter as a table: system calls that neither a compiler nor a kernel launcher needs, answered EPERM.

Two profiles. "tool": no sockets, tracing, namespaces, mounts, modules, clocks, keys. "job": that, and no new process
or program either (threads stay possible). Standard library only. Architectures: x86_64 and aarch64; on others
`install` raises, and the caller decides. A deny list is the second fence here, behind Landlock and namespaces: it
does not try to name every system call.
"""

import ctypes
import errno
import os
import platform
import struct

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000

# name -> (x86_64, aarch64); -1: does not exist there
NETWORK = {"socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "sendto": (44, 206)}
SPY = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    "perf_event_open": (298, 241),
    "syslog": (103, 116),
}
KERNEL = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
}
PROCESSES = {"fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281)}
CLONE, CLONE3 = (56, 220), (435, 435)
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)
CLONE_THREAD = 0x00010000

RET_ALLOW, RET_ERRNO, RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_EQ, JUMP_GE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
OFFSET_NR, OFFSET_ARCH, OFFSET_ARG0 = 0, 4, 16
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

Instruction = tuple[int, int, int, int]


def _refuse(number: int, code: int = errno.EPERM) -> list[Instruction]:
    """Two instructions a call, so that no jump is ever long."""
    return [(JUMP_EQ, 0, 1, number), (RETURN, 0, 0, RET_ERRNO | code)]


def _only_own_pid(number: int, pid: int, zero_is_self: bool) -> list[Instruction]:
    """Allow the call only when its first argument is this process."""
    allowed = [(JUMP_EQ, 2, 0, 0)] if zero_is_self else []
    body: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARG0),
        *allowed,
        (JUMP_EQ, 1, 0, pid),
        (RETURN, 0, 0, RET_ERRNO | errno.EPERM),
        (RETURN, 0, 0, RET_ALLOW),
    ]
    return [(JUMP_EQ, 0, len(body), number), *body]


def program(profile: str, machine: str, pid: int) -> list[Instruction]:
    """The filter for one process id. Raises KeyError for an unknown machine, ValueError for an unknown profile."""
    if profile not in ("job", "tool"):
        raise ValueError(f"unknown seccomp profile {profile!r}")
    column = {"x86_64": 0, "aarch64": 1}[machine]
    out: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JUMP_EQ, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, RET_KILL),
        (LOAD, 0, 0, OFFSET_NR),
    ]
    if machine == "x86_64":
        out += [(JUMP_GE, 0, 1, X32_BIT), (RETURN, 0, 0, RET_ERRNO | errno.ENOSYS)]
    denied = {**NETWORK, **SPY, **KERNEL, **(PROCESSES if profile == "job" else {})}
    for numbers in denied.values():
        if numbers[column] >= 0:
            out += _refuse(numbers[column])
    if profile == "job":
        out += _refuse(CLONE3[column], errno.ENOSYS)  # libc then falls back to clone, whose flags can be read here
        out += _only_own_pid(PRLIMIT[column], pid, zero_is_self=True)
        out += _only_own_pid(KILL[column], pid, zero_is_self=False)
        out += _only_own_pid(TGKILL[column], pid, zero_is_self=False)
        thread = [(LOAD, 0, 0, OFFSET_ARG0), (JUMP_SET, 1, 0, CLONE_THREAD), (RETURN, 0, 0, RET_ERRNO | errno.EAGAIN)]
        out += [(JUMP_EQ, 0, len(thread), CLONE[column]), *thread]
    return [*out, (RETURN, 0, 0, RET_ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(profile: str) -> None:
    """Filter this thread and its children from now on. Raises OSError where seccomp is missing."""
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"no seccomp table for {machine}")
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program(profile, machine, os.getpid()))
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
