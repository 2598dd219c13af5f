"""Starts processes until it is stopped; reports how many it got."""

import os
import subprocess


def build(dims, tokens, arch):
    started, why = 0, ""
    for _ in range(2000):
        try:
            if os.fork() == 0:
                while True:
                    pass
            started += 1
        except OSError as error:
            why = str(error)
            break
    try:
        subprocess.run(["/bin/sleep", "1000"], check=False)
        started += 1
    except OSError as error:
        why += f"; {error}"
    raise ValueError(f"ESCAPED: {started} processes" if started else f"refused: {why}")
