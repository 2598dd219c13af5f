"""Probes of the kernel's other doors: signals, tracing, namespaces, users, and what only administrators need.

Run inside the sandbox; standard library only. An empty list says that everything was refused.
"""

import ctypes
import os
import signal
from functools import partial

from kgen.gates.sandbox.attempt import REFUSALS, Attempts, Bait, call, libc, through

NAMESPACES = {
    "user": 0x10000000,  # first: who gets one may make all the others
    "mount": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
}
# tried with arguments that nothing can be done with: who may use the call is told that they are bad
DOORS = (
    *("mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "chroot", "open_by_handle_at", "mknodat", "init_module", "finit_module", "delete_module"),
    *("kexec_load", "reboot", "swapon", "acct", "quotactl", "settimeofday", "clock_settime", "clock_adjtime"),
    *("sethostname", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "add_key", "request_key", "keyctl"),
    *("shmget", "semget", "syslog", "fanotify_init", "memfd_secret"),
)
PTRACE_SEIZE, F_SETOWN, KCMP_FILES, ADDR_NO_RANDOMIZE = 0x4206, 8, 2, 0x0040000
PR_GET_NO_NEW_PRIVS, CAPABILITY_VERSION_3 = 39, 0x20080522
STRANGER = 12  # a user and group that nobody here is


def _targets(bait: Bait) -> dict[str, int]:
    """Processes that are no business of the sandboxed one. A tool's parent is part of its own sandbox."""
    own = {"the server": os.getppid()} if bait["fence"] == "job" else {}
    return {**own, "a process outside": bait["outsider"]}


def signals(bait: Bait) -> list[str]:
    """SIGURG, which nobody dies of, in all the ways that there are."""
    urgent, reader = signal.SIGURG, os.pipe()[0]
    info = ctypes.create_string_buffer(128)
    ctypes.c_int.from_buffer(info, 8).value = -1  # si_code: SI_QUEUE
    attempts: Attempts = {}
    for who, pid in _targets(bait).items():
        attempts |= {
            f"kill: {who}": partial(os.kill, pid, urgent),
            f"sigqueue: {who}": partial(call, "rt_sigqueueinfo", pid, urgent, ctypes.addressof(info)),
            f"tkill: {who}": partial(call, "tkill", pid, urgent),
            f"tgkill: {who}": partial(call, "tgkill", pid, pid, urgent),
            f"pidfd: {who}": partial(_by_descriptor, "pidfd_send_signal", pid, urgent, 0, 0),
            f"owner of a pipe: {who}": partial(call, "fcntl", reader, F_SETOWN, pid),
        }
    return through(attempts)


def _by_descriptor(name: str, pid: int, *arguments: int) -> int:
    return call(name, os.pidfd_open(pid), *arguments)


def others_limits(bait: Bait) -> list[str]:
    old, mask = ctypes.create_string_buffer(16), ctypes.create_string_buffer(b"\xff" * 128)
    attempts: Attempts = {}
    for who, pid in _targets(bait).items():
        attempts |= {
            f"read the limits of {who}": partial(call, "prlimit64", pid, 7, 0, ctypes.addressof(old)),
            f"set the processors of {who}": partial(call, "sched_setaffinity", pid, 128, ctypes.addressof(mask)),
            f"set the priority of {who}": partial(call, "setpriority", 0, pid, 0),
        }
    return through(attempts)


def ptrace(bait: Bait) -> list[str]:
    word = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(word), 8)
    at = ctypes.addressof(vector)
    attempts: Attempts = {}
    for who, pid in _targets(bait).items():
        attempts |= {
            f"traces {who}": partial(call, "ptrace", PTRACE_SEIZE, pid, 0, 0),
            f"reads the memory of {who}": partial(call, "process_vm_readv", pid, at, 1, at, 1, 0),
            f"opened the memory of {who}": partial(os.open, f"/proc/{pid}/mem", os.O_RDWR),
            f"compared itself with {who}": partial(call, "kcmp", os.getpid(), pid, KCMP_FILES, 0, 0),
            f"took a descriptor of {who}": partial(_by_descriptor, "pidfd_getfd", pid, 0, 0),
        }
    return through(attempts)


def _is_child(pid: int) -> bool:
    if pid == 0:
        os._exit(0)
    return pid > 0


def namespaces(bait: Bait) -> list[str]:
    got = []
    for name, flag in NAMESPACES.items():
        got += [f"clone: {name}"] if _is_child(call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)) else []
    arguments = (ctypes.c_uint64 * 8)(NAMESPACES["user"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    got += ["clone3: user"] if _is_child(call("clone3", ctypes.addressof(arguments), ctypes.sizeof(arguments))) else []
    attempts: Attempts = {f"unshare: {name}": partial(call, "unshare", flag) for name, flag in NAMESPACES.items()}
    attempts |= {f"setns: {name}": partial(_enter, name) for name in ("user", "mnt", "net")}
    return got + through(attempts)


def _enter(name: str) -> int:
    return call("setns", os.open(f"/proc/{os.getppid()}/ns/{name}", os.O_RDONLY), 0)


def kernel_doors(bait: Bait) -> list[str]:
    got = [name for name in DOORS if -call(name, -1, -1, -1, -1, -1, -1) not in REFUSALS]
    return got + (["personality"] if call("personality", ADDR_NO_RANDOMIZE) >= 0 else [])


def setuid(bait: Bait) -> list[str]:
    """`caps`: capabilities that the level says it leaves, as a mask."""
    header, data = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    left = (data[0] | data[3] << 32) & ~bait["caps"]
    got = [f"has capabilities {left:x}"] if left else []
    got += [] if libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 else ["setuid programs work"]
    own = os.open("owned", os.O_WRONLY | os.O_CREAT, 0o600)
    changes: Attempts = {} if os.geteuid() == 0 else {"became root": partial(os.setresuid, 0, 0, 0)}
    changes |= {
        "gave a file away": partial(os.fchown, own, STRANGER, STRANGER),
        "took other groups": partial(os.setgroups, [STRANGER]),
        "became another user": partial(os.setresuid, STRANGER, STRANGER, STRANGER),
    }
    return got + through(changes)
