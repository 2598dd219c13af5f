"""Writes an answer of its own to every descriptor, leaves a forged result, and is gone."""

import json
import os


def build(dims, tokens, arch):
    answer = json.dumps({"id": 1, "returncode": 0, "timed_out": False, "flooded": False, "seconds": 0, "output": ""})
    for fd in range(3, 1024):
        try:
            os.write(fd, answer.encode() + b"\n")
            os.write(1, b"ESCAPED: inherited a descriptor")
        except OSError:
            pass
    print(answer)
    for name in ("kernel.o", "kernel.cubin", "kernel.ptx"):
        with open(name, "wb") as file:
            file.write(b"forged")
    with open("result.json", "w") as file:
        json.dump({"ok": True, "workspaces": [], "design": "forged", "seconds": 0}, file)
    os._exit(0)
