"""Commands whose clock jumps while they run."""

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass

from exploits.harness.off import Off
from faults.harness.desk import Desk, World, until
from faults.harness.places import MATRIX, the_run
from support.loops import OP

DAY = 86_400


@dataclass(frozen=True)
class Jump:
    """While an answer is waited for, the clock jumps. The command is ended when it is still there after `patience`."""

    seconds: int
    patience: float = 4.0

    def code(self, desk: Desk, off: Off) -> str:
        home, now = desk.fresh(), desk.fresh() / "now"
        argv = ("propose", "--op", OP.name, "--proposer", "mailbox", "--minutes", "0.02", *MATRIX)

        def jump(pid: int) -> None:
            until(lambda: any(home.glob("runs/*/mailbox/*-prompt.md")))
            now.touch()
            threading.Timer(self.patience, _end, (pid,)).start()

        done = desk.kgen(home, *argv, world=World(clock=self.seconds, place=str(now)), off=off, meanwhile=jump)
        return f"exit {done.exit}, {the_run(home).state}"


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
