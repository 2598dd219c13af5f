"""Entry of a probe: a fresh process that computes on the device what is known, and says how that went in one line.

It fills and reads 64 MiB, sums integers and multiplies matrices of small whole numbers, which are exact in any order.
Exit code 0: all as it must be. Not covered: most of the device's memory, and its speed.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from kgen.gates.gpu import standin

COUNT, MODULUS, SIDE, BYTES = 4096, 7919, 128, 64 << 20
PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    state = os.environ.get(standin.VARIABLE, "")
    ailment = Path(state).read_text() if state and Path(state).exists() else standin.WELL
    if ailment == standin.DEAD:
        sys.stdout.write("the stand-in is dead\n")
        return 1
    while ailment == standin.STUCK:
        time.sleep(1.0)
    try:
        wrong = _computed(argv[0], 1 if ailment == standin.WRONG else 0)
    except RuntimeError as error:  # what torch raises for every error of CUDA
        wrong = found(str(error))
    sys.stdout.write(f"{wrong or 'well'}\n")
    return 1 if wrong else 0


def found(text: str) -> str:
    """What an error says of the device. Memory that others have filled says nothing: such a device counts as well."""
    return (
        "" if "out of memory" in text.lower() else (text.strip().splitlines() or ["an error without a word"])[0][:300]
    )


def _computed(device: str, offset: int) -> str:
    """What was wrong, "" for nothing. `offset` spoils the numbers of a stand-in."""
    import torch

    numbers = torch.arange(COUNT, device=device, dtype=torch.int64)
    total = int((numbers * numbers % MODULUS).sum()) + offset
    if total != sum(i * i % MODULUS for i in range(COUNT)):
        return f"a sum of integers is wrong: {total}"
    a = (torch.arange(SIDE * SIDE, device=device) % 7).float().view(SIDE, SIDE)
    got = int((a @ a).double().sum())
    columns = [sum((r * SIDE + c) % 7 for r in range(SIDE)) for c in range(SIDE)]
    rows = [sum((r * SIDE + c) % 7 for c in range(SIDE)) for r in range(SIDE)]
    if got != sum(x * y for x, y in zip(columns, rows, strict=True)):
        return f"a product of matrices is wrong: {got}"
    filled = torch.full((BYTES,), 0xA5, device=device, dtype=torch.uint8)
    if int((filled == 0xA5).sum()) != BYTES:
        return "memory does not hold what was written"
    return ""
