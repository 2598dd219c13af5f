"""Memory rates by GPU model: what a plain read reaches (roofline) and what the memory cannot exceed (credibility)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rates:
    """Bytes per second. `read`: fastest plain read measured; `nominal`: the vendor's peak."""

    read: float
    nominal: float
    source: str


MEASURED: Mapping[str, Rates] = {
    "NVIDIA H200": Rates(4.48e12, 4.8e12, "plain read measured on one H200 SXM; nominal by the datasheet"),
}
READ_SHARE = 0.93  # of nominal, where no read was measured: the H200's share


def rates(gpu: str) -> Rates | None:
    """The rates of a GPU by name; derived from clock and bus width where the table has none; None without a GPU."""
    if gpu in MEASURED:
        return MEASURED[gpu]
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock_khz, bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    if not clock_khz or not bits:
        return None
    nominal = 2.0 * clock_khz * 1e3 * bits / 8
    return Rates(READ_SHARE * nominal, nominal, f"derived: 2 x {clock_khz} kHz x {bits} bits; read taken as 93 %")
