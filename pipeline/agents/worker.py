"""The process that takes submitted candidates through the gates, one run after the other, for a server beside it.

stdin: one JSON document a line, {"run", "cache", "kernels"}: paths. stdout: one a line for what goes on,
{"run", "what": "begun" | "stage" | "ended" | "error", "text"}. When stdin ends (the server has gone, however), the run
in work is left as an interrupt leaves it, and can be taken up again. Not covered: who asks for what (`labour`).
"""

import json
import os
import queue
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from kgen.loop.events import Event
from kgen.loop.session import outcome, work_on
from kgen.loop.settings import read_settings
from kgen.loop.steps import Waiting, verdicts
from kgen.ops import REGISTRY
from kgen.proposers.submitted import SubmittedProposer
from kgen.store.runs import Run

BEGUN, STAGE, ENDED, FAILED = "begun", "stage", "ended", "error"


class Worker:
    """Works off the lines of a stream in the main thread, which a signal interrupts."""

    def __init__(self, jobs: TextIO, says: TextIO) -> None:
        self.jobs, self.says = jobs, says
        self.gone = threading.Event()
        self._todo: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()

    def listen(self) -> None:
        """Put what comes into the queue; at the end of the stream stop the main thread."""
        for line in self.jobs:
            self._todo.put(json.loads(line))
        self.gone.set()
        self._todo.put(None)
        os.kill(os.getpid(), signal.SIGTERM)

    def work(self) -> None:
        threading.Thread(target=self.listen, name="kgen-jobs", daemon=True).start()
        while (job := self._todo.get()) is not None and not self.gone.is_set():
            self.say(job["run"], BEGUN, "")
            try:
                self.say(job["run"], ENDED, self.one(job))
            # The boundary of a job: its client is told in one line, and the next job is another run's.
            except Exception as error:  # noqa: BLE001
                self.say(job["run"], FAILED, " ".join(str(error).split())[:600] or type(error).__name__)

    def one(self, job: dict[str, str]) -> str:
        """All that is submitted to one run; returns why it ended, "" when it waits for the next submission."""
        run = Run(Path(job["run"]))
        settings = read_settings(run.info.settings, f"{run.path}/run.json")
        op = REGISTRY.get(settings.op)

        def watch(event: Event) -> None:
            if self.gone.is_set() and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt  # one that an import swallowed
            if event.kind == "stage":
                self.say(job["run"], STAGE, event.text)

        try:
            cache, kernels = Path(job["cache"]), Path(job["kernels"])
            return work_on(run, op, settings, SubmittedProposer(), cache, watch, kernels).why
        except Waiting:
            with run.lock():
                run.finish(outcome(verdicts(run.folders())))
            return ""

    def say(self, run: str, what: str, text: str) -> None:
        document: dict[str, Any] = {"run": run, "what": what, "text": text}
        self.says.write(json.dumps(document) + "\n")
        self.says.flush()


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the process. What children print goes to stderr, which is the server's log."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    says = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        Worker(jobs, says).work()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)


if __name__ == "__main__":
    main()
