"""Delays of one rank in front of a launch."""

import time
from typing import Any

import torch

CYCLES_PER_US = 1980  # of an H200 at its highest clock: at lower clocks the delay is longer
cuda: Any = torch.cuda


def delay(device: str, us: float) -> None:
    """Queue a spin of `us` microseconds on the current stream; on the CPU, sleep for them."""
    if us <= 0:
        return
    if device == "cpu":
        time.sleep(us * 1e-6)
    else:
        cuda._sleep(int(us * CYCLES_PER_US))
