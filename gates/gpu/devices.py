"""The GPUs that this process may use, by UUID, and what the driver says of them.

`bench(device)` gives the functions for a gate's device word: those of CUDA, none for the CPU, or the stand-in of
standin.py where one is put in place. Not covered: MIG slices as parts of one GPU (each counts as a device).
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SMI_SECONDS = 20
COUNTERS = ("ecc.errors.uncorrected.volatile.total", "remapped_rows.pending", "retired_pages.pending")
XID = re.compile(r"NVRM: Xid")
LOG_LINES = 3


@dataclass(frozen=True)
class Device:
    """`name` is the model: work may move to another device of the same name only."""

    uuid: str
    name: str
    index: int

    def __str__(self) -> str:
        return f"{self.name} {self.uuid}"


class Bench(Protocol):
    """The functions of a kind of device."""

    word: str  # what jobs are told: cuda or cpu

    def devices(self) -> Sequence[Device]:
        """All that this process may use, the current one first."""

    def choose(self, device: Device) -> None:
        """Make it the current one of this thread."""

    def environment(self, device: Device) -> Mapping[str, str]:
        """Variables by which a child process sees this device, and no other."""

    def counters(self, device: Device) -> Mapping[str, str]:
        """The driver's counters of errors that only new hardware or a reset mends; {} where it does not tell."""

    def log(self, device: Device) -> Sequence[str]:
        """The driver's last words on the device, where they may be read."""


class Cuda:
    word = "cuda"

    def devices(self) -> Sequence[Device]:
        import torch  # here: who has the devices is asked by processes that compute nothing

        if not torch.cuda.is_available():
            return ()
        count, current = torch.cuda.device_count(), torch.cuda.current_device()
        order = [current, *(i for i in range(count) if i != current)]
        return [_device(torch.cuda.get_device_properties(i), i) for i in order]

    def choose(self, device: Device) -> None:
        import torch

        if torch.cuda.current_device() != device.index:  # setting it makes a context
            torch.cuda.set_device(device.index)

    def environment(self, device: Device) -> Mapping[str, str]:
        import torch

        alone = torch.cuda.device_count() == 1  # then what the caller's environment says will do
        return {} if alone else {"CUDA_VISIBLE_DEVICES": device.uuid}

    def counters(self, device: Device) -> Mapping[str, str]:
        said = _asked("nvidia-smi", f"--query-gpu={','.join(COUNTERS)}", "--format=csv,noheader", "-i", device.uuid)
        values = [value.strip() for value in said.strip().split(",")]
        return dict(zip(COUNTERS, values, strict=True)) if len(values) == len(COUNTERS) else {}

    def log(self, device: Device) -> Sequence[str]:
        bus = _asked("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader", "-i", device.uuid).strip()
        short = bus.lower().split(":", 1)[-1].rpartition(".")[0]  # "18:00": the log writes fewer zeros in front
        lines = [line for line in _asked("dmesg").splitlines() if XID.search(line) and short and short in line.lower()]
        return [" ".join(line.split())[:300] for line in lines[-LOG_LINES:]]


def _device(properties: Any, index: int) -> Device:
    found = str(getattr(properties, "uuid", "")) or f"number-{index}"  # an old torch knows no UUID
    return Device(found if found.startswith(("GPU-", "MIG-")) else f"GPU-{found}", str(properties.name), index)


def _asked(program: str, *arguments: str) -> str:
    """What a program says; "" where it is missing, refuses or hangs, as it may on a machine that is not well."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


CUDA = Cuda()
_in_place: list[Bench] = []


def bench(device: str) -> Bench | None:
    """None: nothing that has to be shared."""
    if _in_place:
        return _in_place[-1]
    return CUDA if device.startswith("cuda") else None


def put_in_place(bench: Bench) -> None:
    """The stand-in takes over for this process."""
    _in_place.append(bench)


def take_away(bench: Bench) -> None:
    _in_place.remove(bench)
