"""Devices that are not there: folders of the CPU's, whose health is a file. They show without a GPU what leases,
probes and quarantine do, and are put in place by tests only.

    with in_place(StandIn(folder, 2)): ...       both gates' device words then mean these

A state file holds one word: "" (well), "dead" (nothing computes), "stuck" (nothing ends), "wrong" (numbers are wrong);
`errors` beside it counts as the driver would. The runner's faults `wedges` and `ecc` write them.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kgen.gates.gpu.devices import Device, put_in_place, take_away

VARIABLE = "STANDIN_DEVICE_STATE"  # tells a child the state file of its device
WELL, DEAD, STUCK, WRONG = "", "dead", "stuck", "wrong"


class StandIn:
    word = "cpu"

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.folder = folder
        self._devices = [Device(f"STANDIN-{number}", "stand-in", number) for number in range(count)]
        self._current = 0

    def devices(self) -> Sequence[Device]:
        return [*self._devices[self._current :], *self._devices[: self._current]]

    def choose(self, device: Device) -> None:
        self._current = device.index

    def environment(self, device: Device) -> Mapping[str, str]:
        return {VARIABLE: str(self.state(device))}

    def counters(self, device: Device) -> Mapping[str, str]:
        errors = self.state(device).with_suffix(".errors")
        return {"errors": errors.read_text() if errors.exists() else "0"}

    def log(self, device: Device) -> Sequence[str]:
        return [f"stand-in: {device.uuid} is {self.state(device).read_text()}"] if self.state(device).exists() else []

    def state(self, device: Device) -> Path:
        return self.folder / device.uuid


@contextlib.contextmanager
def in_place(bench: StandIn) -> Iterator[StandIn]:
    put_in_place(bench)
    try:
        yield bench
    finally:
        take_away(bench)
