"""Writes wherever a judge would not like it."""

import os
import sys
import tempfile

PLACES = ["/usr/kgen-escape", "/etc/kgen-escape", "/tmp/kgen-escape", "/kgen-escape", "/root/kgen-escape", "/home/x"]
PLACES += ["/dev/shm/kgen-escape", "/var/tmp/kgen-escape", "../kgen-escape", "../../kgen-escape"]


def build(dims, tokens, arch):
    package = list(sys.modules["kgen.gates.builder"].__path__)[0]
    done = []
    for place in [*PLACES, f"{package}/escape.py", f"{tempfile.__file__}", f"{os.path.dirname(os.getcwd())}/escape"]:
        for flags in (os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC):
            try:
                os.close(os.open(place, flags))
                done.append(place)
            except OSError:
                pass
    for make in (lambda p: os.mkdir(p), lambda p: os.symlink("/etc/passwd", p), lambda p: os.mkfifo(p)):
        try:
            make("../made")
            done.append("../made")
        except OSError:
            pass
    raise ValueError(f"ESCAPED: {done}" if done else "refused")
