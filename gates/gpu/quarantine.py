"""GPUs that are not used until a person says so: one record a device, in the shared folder.

Not covered: a reboot, which empties the folder, and other software, which does not look there.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kgen.gates.gpu import places
from kgen.gates.gpu.devices import Device
from kgen.store.errors import StoreError
from kgen.store.runs import utc_now

SUFFIX = ".quarantine"


@dataclass(frozen=True)
class Quarantine:
    """`what`: the work during which it happened; `said`: counters and log of the driver, where it told."""

    SCHEMA: ClassVar[str] = "kgen.gpu-quarantine/1"
    device: str  # UUID
    name: str
    reason: str
    what: str
    time: str
    host: str
    said: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f" ({'; '.join(self.said)})" if self.said else ""
        return f"GPU {self.name} {self.device} was put in quarantine at {self.time}: {self.reason}{words}"


class DeviceLost(StoreError):
    """The device went wrong under this work, and is in quarantine now. Ours to retry; another device may do."""


class NoDevice(StoreError):
    """All devices are in quarantine: nothing more can run here until one is released."""


def _path(uuid: str) -> Path:
    return places.folder() / f"{uuid}{SUFFIX}"


def find(device: Device) -> Quarantine | None:
    return places.read(Quarantine, _path(device.uuid))


def listed() -> list[Quarantine]:
    """All that are in force on this host."""
    found = (places.read(Quarantine, path) for path in sorted(places.folder().glob(f"*{SUFFIX}")))
    return [record for record in found if record is not None]


def place(device: Device, reason: str, what: str, said: tuple[str, ...] = ()) -> Quarantine:
    """The first reason stays: later ones follow from it. Raises StoreError."""
    if (known := find(device)) is not None:
        return known
    record = Quarantine(device.uuid, device.name, reason, what, utc_now(), socket.gethostname(), said)
    _write(device.uuid, record)
    return record


def release(uuid: str) -> Quarantine:
    """Back into use; `uuid` may be the beginning of one. Raises ValueError where that names no single device."""
    known = {record.device: record for record in listed()}
    meant = [uuid] if uuid in known else [device for device in known if uuid and device.startswith(uuid)]
    if len(meant) != 1:
        raise ValueError(f"no single GPU in quarantine is {uuid!r}; in quarantine: {', '.join(known) or 'none'}")
    _write(meant[0], None)
    return known[meant[0]]


def _write(uuid: str, record: Any) -> None:
    handle = places.opened(_path(uuid))
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        places.put(handle, record)
