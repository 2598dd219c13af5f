"""Tries for the kernel's rarer doors: namespaces, mounts, tracing, other processes' memory."""

import ctypes
import os


def build(dims, tokens, arch):
    libc = ctypes.CDLL(None, use_errno=True)
    done = []
    calls = {
        "user namespace": lambda: libc.unshare(0x10000000),
        "mount namespace": lambda: libc.unshare(0x00020000),
        "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
        "chroot": lambda: libc.chroot(b"."),
        "ptrace": lambda: libc.ptrace(16, os.getppid(), 0, 0),
        "hostname": lambda: libc.sethostname(b"x", 1),
        "clock": lambda: libc.settimeofday(ctypes.create_string_buffer(16), None),
        "keyring": lambda: libc.syscall(250, 0, -3, 1) if os.uname().machine == "x86_64" else -1,
        "io_uring": lambda: libc.syscall(425, 4, ctypes.create_string_buffer(256)),
        "other's limits": lambda: libc.prlimit(os.getppid(), 7, None, ctypes.create_string_buffer(16)),
    }
    for name, call in calls.items():
        if call() >= 0:
            done.append(name)
    raise ValueError(f"ESCAPED: {done}" if done else "refused")
