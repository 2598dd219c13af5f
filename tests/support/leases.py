"""Processes that take a stand-in's lease, for tests: each is a fresh interpreter, as another kgen process would be."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SCRIPT = """
import json, os, subprocess, sys, time
from pathlib import Path
from kgen.gates.gpu import lease, standin
from kgen.gates.gpu.lease import leased
asked = json.loads(sys.argv[1])
folder = Path(asked["folder"])
lease.POLL_SECONDS = 0.01

def say(text):
    with (folder / "said").open("a") as file:
        file.write(asked["name"] + ": " + text + "\\n")

with standin.in_place(standin.StandIn(folder, asked["devices"])):
    (folder / (asked["name"] + ".since")).write_text(str(time.monotonic()))
    for turn in range(asked["turns"]):
        with leased("cpu", asked["name"], asked["seconds"], wait=asked["wait"], say=say) as held:
            if asked["child"]:
                child = subprocess.Popen(["sleep", "120"], start_new_session=True)
                held.run(child.pid, asked["child"])
                (folder / (asked["name"] + ".child")).write_text(str(child.pid))
            with (folder / "log").open("a") as file:  # O_APPEND: lines of several processes stay whole
                file.write(f"{time.monotonic()} {asked['name']} begin {held.device.uuid}\\n")
            time.sleep(asked["hold"])
            with (folder / "log").open("a") as file:
                file.write(f"{time.monotonic()} {asked['name']} end {held.device.uuid}\\n")
            if asked["child"]:
                held.end(child.pid)
                child.kill()
"""


def start(folder: Path, name: str, *, turns: int = 1, hold: float = 0.0, seconds: float = 60.0, wait: float = 60.0,
          devices: int = 1, child: float = 0.0) -> "subprocess.Popen[str]":  # fmt: skip
    """A process that holds the lease `turns` times for `hold` seconds; `child`: one of its own on the device, with
    that many seconds."""
    asked = {"folder": str(folder), "name": name, "turns": turns, "hold": hold, "seconds": seconds, "wait": wait,
             "devices": devices, "child": child}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "KGEN_GPU_FOLDER": str(folder / "gpu")},
    )


@contextlib.contextmanager
def ended(*processes: "subprocess.Popen[str]") -> Iterator[None]:
    """None of them outlives the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def until(holds: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Wait for a condition; `holds` is called again and again."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def intervals(folder: Path) -> list[tuple[float, float, str, str]]:
    """Begin, end, name and device of every use that came to its end, in order of the beginning."""
    begun: dict[tuple[str, str], float] = {}
    found = []
    for line in (folder / "log").read_text().splitlines():
        moment, name, word, device = line.split()
        if word == "begin":
            begun[name, device] = float(moment)
        else:
            found.append((begun.pop((name, device)), float(moment), name, device))
    return sorted(found)
