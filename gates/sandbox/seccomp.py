"""A seccomp filter as a table: system calls that neither a compiler nor a kernel launcher needs, answered EPERM.

Two profiles. "tool": no sockets, tracing, namespaces, mounts, modules, clocks, keys, limits or priorities of others.
"job": that, and no new process or program, no file or memory that its folder does not show (threads stay possible).
Calls newer than `NEWEST` are answered ENOSYS: a list of what is refused cannot name what does not exist yet. Standard
library only. Architectures: x86_64 and aarch64; on others `install` raises, and the caller decides. It is the second
fence here, behind Landlock and namespaces: it does not try to name every older system call.
"""

import ctypes
import errno
import os
import platform
import struct

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWEST = 452  # fchmodat2, Linux 6.6; what follows, and the x32 calls far above, does not exist in here

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
    "pidfd_open": (434, 434),
    "process_mrelease": (448, 448),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
}
KERNEL = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
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
    "quotactl_fd": (443, 443),
    "vhangup": (153, 58),
    "modify_ldt": (154, -1),
    "uselib": (134, -1),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
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
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_secret": (447, 447),
}
PROCESSES = {"fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281)}
# Disk and memory that a look at a job's folder would not show. Compilers do delete their scratch files: they are told
# that it worked, and the file stays where it is counted
UNSEEN = {"rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "memfd_create": (319, 279)}
DELETE = {"unlink": (87, -1), "unlinkat": (263, 35), "rmdir": (84, -1)}
OWN_ONLY = {  # first argument 0: the caller itself
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
}
CLONE, CLONE3, OPENAT2, FALLOCATE = (56, 220), (435, 435), (437, 437), (285, 47)
OPEN, OPENAT, PRCTL, PERSONALITY = (2, -1), (257, 56), (157, 167), (135, 92)
KILL, TGKILL, FCNTL, IOCTL = (62, 129), (234, 131), (72, 25), (16, 29)
CLONE_THREAD, CLONE_NEW_ANY = 0x00010000, 0x7E020000  # every namespace that clone can make
TMPFILE = 0x00400000  # of O_TMPFILE, without the O_DIRECTORY in it
PR_SET_PDEATHSIG, SIGKILL = 1, 9
PERSONALITIES = (0, 0xFFFFFFFF)  # the ordinary one, and the question which it is
SIGNAL_OWNER = {FCNTL: (8, 10, 15), IOCTL: (0x8901, 0x8902)}  # F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP
KEYSTROKES = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: input typed into somebody's terminal

RET_ALLOW, RET_ERRNO, RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_EQ, JUMP_GE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
OFFSET_NR, OFFSET_ARCH, OFFSET_ARGS = 0, 4, 16
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

Instruction = tuple[int, int, int, int]


def _refuse(number: int, code: int = errno.EPERM) -> list[Instruction]:
    """Two instructions a call, so that no jump is ever long. Code 0: not done, and called done."""
    return [(JUMP_EQ, 0, 1, number), (RETURN, 0, 0, RET_ERRNO | code)]


def _by_argument(number: int, index: int, tests: list[tuple[int, int]], hit: int, miss: int) -> list[Instruction]:
    """For one call: `hit` if one of the tests (jump, value) is true of the low half of an argument, else `miss`."""
    body: list[Instruction] = [(LOAD, 0, 0, OFFSET_ARGS + 8 * index)]
    body += [(jump, len(tests) - i, 0, value) for i, (jump, value) in enumerate(tests)]
    body += [(RETURN, 0, 0, miss), (RETURN, 0, 0, hit)]
    return [(JUMP_EQ, 0, len(body), number), *body]


def _equal(*values: int) -> list[tuple[int, int]]:
    return [(JUMP_EQ, value) for value in values]


REFUSED = RET_ERRNO | errno.EPERM


def _own_only(number: int, *own: int) -> list[Instruction]:
    return _by_argument(number, 0, _equal(*own), RET_ALLOW, REFUSED)


def program(profile: str, machine: str, pid: int) -> list[Instruction]:
    """The filter for one process id. Raises KeyError for an unknown machine, ValueError for an unknown profile."""
    if profile not in ("job", "tool"):
        raise ValueError(f"unknown seccomp profile {profile!r}")
    column, job = {"x86_64": 0, "aarch64": 1}[machine], profile == "job"
    out: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JUMP_EQ, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, RET_KILL),
        (LOAD, 0, 0, OFFSET_NR),
        (JUMP_GE, 0, 1, NEWEST + 1),
        (RETURN, 0, 0, RET_ERRNO | errno.ENOSYS),
    ]
    for numbers in {**NETWORK, **SPY, **KERNEL, **(PROCESSES | UNSEEN if job else {})}.values():
        if numbers[column] >= 0:
            out += _refuse(numbers[column])
    out += _refuse(CLONE3[column], errno.ENOSYS)  # libc then falls back to clone, whose flags can be read here
    out += [i for numbers in OWN_ONLY.values() for i in _own_only(numbers[column], 0)]
    out += _by_argument(PERSONALITY[column], 0, _equal(*PERSONALITIES), RET_ALLOW, REFUSED)
    out += _by_argument(FCNTL[column], 1, _equal(*SIGNAL_OWNER[FCNTL]), REFUSED, RET_ALLOW)
    out += _by_argument(IOCTL[column], 1, _equal(*SIGNAL_OWNER[IOCTL], *KEYSTROKES), REFUSED, RET_ALLOW)
    out += _refuse(FALLOCATE[column], errno.EOPNOTSUPP)  # takes gigabytes between two looks at the folder; libc writes
    out += _dies_with_parent(PRCTL[column])
    out += _for_a_job(column, pid) if job else []
    if not job:
        out += _by_argument(CLONE[column], 0, [(JUMP_SET, CLONE_NEW_ANY)], REFUSED, RET_ALLOW)
    return [*out, (RETURN, 0, 0, RET_ALLOW)]


def _dies_with_parent(number: int) -> list[Instruction]:
    """Whatever it does: the signal at its parent's death may be set to SIGKILL only."""
    body: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARGS),
        (JUMP_EQ, 0, 3, PR_SET_PDEATHSIG),
        (LOAD, 0, 0, OFFSET_ARGS + 8),
        (JUMP_EQ, 1, 0, SIGKILL),
        (RETURN, 0, 0, REFUSED),
        (RETURN, 0, 0, RET_ALLOW),
    ]
    return [(JUMP_EQ, 0, len(body), number), *body]


def _for_a_job(column: int, pid: int) -> list[Instruction]:
    """Threads only; signals to itself only; no nameless files."""
    out = [i for numbers in DELETE.values() if numbers[column] >= 0 for i in _refuse(numbers[column], 0)]
    out += _refuse(OPENAT2[column], errno.ENOSYS)  # its flags lie in memory, where a filter cannot look
    for numbers, index in ((OPEN, 1), (OPENAT, 2)):
        if numbers[column] >= 0:
            out += _by_argument(numbers[column], index, [(JUMP_SET, TMPFILE)], REFUSED, RET_ALLOW)
    out += _own_only(KILL[column], pid)
    out += _own_only(TGKILL[column], pid)
    return out + _by_argument(CLONE[column], 0, [(JUMP_SET, CLONE_THREAD)], RET_ALLOW, RET_ERRNO | errno.EAGAIN)


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
