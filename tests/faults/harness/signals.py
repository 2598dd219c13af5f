"""A command is interrupted in one of its phases: its exit status, its line, and the run that is left."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from exploits.harness.off import Off, turned
from faults.harness.desk import Desk, Done, World, until
from faults.harness.endpoint import KEY
from faults.harness.places import MATRIX, SESSION, recorded, the_run
from support import openai_server as srv
from support.loops import OP

from kgen.store import Run, Runs

MARKED = turned(
    SESSION,
    "            if not finished:\n                run.mark(INTERRUPTED)\n",
    "",
    "a run that is interrupted says so",
)
ASK, WAIT = ("--proposer", "openai"), ("--proposer", "mailbox")


@dataclass(frozen=True)
class Interrupted:
    """`phase` is reached when the run's folder, and the server with `behaviour`, say so.

    Then comes `signals` times `number`, one every five milliseconds. `builds`: the candidate is one that builds.
    `slow`: milliseconds that each access to the run's folder takes.
    """

    phase: Callable[[Run, srv.Server], bool]
    argv: tuple[str, ...] = ()
    behaviour: Callable[[], srv.Behaviour] = srv.silent
    number: signal.Signals = signal.SIGINT
    signals: int = 1
    builds: bool = False
    matrix: tuple[str, ...] = MATRIX
    slow: int = 0

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        argv = self.argv or ("--replay", recorded(home, self.builds))
        with ExitStack() as stack:
            server = stack.enter_context(srv.serving(self.behaviour()))
            env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}
            full = ("propose", "--op", OP.name, *argv, *self.matrix, "--minutes", "1")
            world = World(slow=self.slow, place=str(home / "runs"))
            done = desk.kgen(
                home, *full, world=world, off=off, env=env, meanwhile=lambda pid: self._send(pid, home, server)
            )
        return self._answer(home, done)

    def _send(self, pid: int, home: Path, server: srv.Server) -> None:
        def ready() -> bool:
            runs = Runs(home / "runs").list()
            return bool(runs) and self.phase(runs[0], server)

        until(ready)
        for _ in range(self.signals):
            try:
                os.kill(pid, self.number)
            except ProcessLookupError:
                return
            time.sleep(0.005)

    def _answer(self, home: Path, done: Done) -> str:
        run = the_run(home)
        assert run.state in ("interrupted", "finished")
        if self.signals > 1 and not run.info.outcome:
            return "not marked"  # where the blows fell is chance, and so are the exit status and the line
        said = "" if f"kgen resume {run.id}" in done.err and "Traceback" not in done.err else ", untidy"
        return f"exit {done.exit}, {run.info.outcome or 'not marked'}{said}"
