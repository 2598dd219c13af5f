"""Is a device well after something on it went wrong? A fresh process computes; two failures, and it is in quarantine.

Errors that name the machine (ECC, a lost device) are never the candidate's fault. But a text alone proves nothing: the
launcher of a candidate could raise it. So a quarantine needs the driver's own counters to have moved, or two probes
that failed. Not covered: a device that is slow, or wrong only now and then.
"""

import logging
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping

from kgen.gates.gpu import places, quarantine
from kgen.gates.gpu.lease import Held
from kgen.gates.gpu.quarantine import DeviceLost
from kgen.gates.runner.child import child_environment, command, end

PROBES = 2
PROBE_SECONDS = 90.0  # importing torch from a cold disk, and a context
MACHINE = re.compile(  # what CUDA says when the machine failed, whatever ran
    r"uncorrectable (ECC|NVLink)|NVLink error|fallen off the bus|GPU is lost|GPU requires reset"
    r"|device\(s\) is/are busy or unavailable"
    r"|no CUDA-capable device|system not yet initialized|a hardware error|driver shutting down",
    re.IGNORECASE,
)


def of_the_machine(text: str) -> bool:
    """Whether an error's text speaks of the machine, not of what ran on it."""
    return MACHINE.search(text) is not None


def probe(held: Held, seconds: float = PROBE_SECONDS) -> str:
    """What a fresh process found wrong with the device; "" when it is well."""
    environment = {**child_environment(), **held.environment}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command("kgen.gates.gpu.probe", held.bench.word),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        held.run(process.pid, seconds)
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            gone = end(process)
            held.end(process.pid)
        said.seek(0)
        last = (said.read().decode(errors="replace").strip().splitlines() or ["no word"])[-1][:300]
    if not gone:
        return "the probe cannot be killed"
    if late:
        return f"no answer within {seconds:.0f} s"
    return "" if process.returncode == 0 else f"{last} (status {process.returncode})"


def examine(held: Held, what: str, why: str, seconds: float = PROBE_SECONDS) -> None:
    """After `why` happened to `what`: raises DeviceLost when the device is, or now gets, into quarantine."""
    if (known := quarantine.find(held.device)) is not None:
        raise DeviceLost(places.folder(), str(known))
    if moved := _moved(held.counters, held.bench.counters(held.device)):
        lose(held, what, f"the driver counts new errors ({moved}) after: {why}")
    found = [""]
    for _ in range(PROBES):
        began = time.monotonic()
        wrong = probe(held, seconds)
        took = f"{time.monotonic() - began:.1f} s after {what}"
        logging.getLogger(__name__).info(f"probe of GPU {held.device}: {wrong or 'well'}, {took}")
        if not wrong:
            return
        found.append(wrong)
    lose(held, what, f"{PROBES} probes failed ({found[-1]}) after: {why}")


def lose(held: Held, what: str, reason: str) -> None:
    """Into quarantine with the device; always raises DeviceLost."""
    counters = tuple(f"{name} {value}" for name, value in held.bench.counters(held.device).items())
    record = quarantine.place(held.device, reason, what, (*counters, *held.bench.log(held.device)))
    raise DeviceLost(places.folder(), str(record))


def _moved(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name}: {before[name]} -> {now[name]}" for name in before if name in now and before[name] != now[name]
    )
