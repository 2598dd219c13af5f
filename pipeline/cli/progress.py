"""What a run looks like while it works: a live bar on a terminal, plain lines elsewhere. All on stderr."""

import sys
import threading
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kgen.cli.boundary import raise_lost_interrupt
from kgen.loop.events import Event
from kgen.records import Status

STYLE = {Status.PASS: "green", Status.FAIL: "red", Status.ERROR: "yellow", Status.SKIP: "cyan"}


class Watcher(AbstractContextManager["Watcher"]):
    """An observer of a run. `quiet`: nothing at all."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(file=sys.stderr, highlight=False)
        self.live = self.console.is_terminal and not quiet
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage, self._done, self._total, self._failed = "", 0, 0, 0

    def __enter__(self) -> "Watcher":
        if self.live:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24))
            self._progress = Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=self.console)
            self._stack.enter_context(self._progress)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._close_stage()
        self._stack.close()

    def __call__(self, event: Event) -> None:
        raise_lost_interrupt()
        if self.quiet:
            return
        with self._lock:
            {"say": self._say, "stage": self._begin, "step": self._step}[event.kind](event)

    def _say(self, event: Event) -> None:
        if self._done >= self._total:
            self._close_stage()
        self._line(Text(event.text))

    def _begin(self, event: Event) -> None:
        self._close_stage()
        self._stage, self._done, self._total, self._failed = event.text, 0, event.total, 0
        if self._progress is not None:
            self._task = self._progress.add_task(event.text, total=event.total)

    def _step(self, event: Event) -> None:
        self._done += 1
        failed = event.result is not None and event.result.status in (Status.FAIL, Status.ERROR)
        self._failed += failed
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=min(self._done, self._total))
        if failed and event.result is not None:
            line = event.result.message.strip().splitlines() or [""]
            text = f"  {event.candidate}  {event.result.status}  {event.result.code}  {line[0][:110]}"
            self._line(Text(text, style=STYLE[event.result.status]))

    def _close_stage(self) -> None:
        """A finished stage becomes one line."""
        if not self._stage:
            return
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
        failed = f", {self._failed} failed" if self._failed else ""
        self._line(Text(f"{self._stage}: {min(self._done, self._total)}/{self._total}{failed}"))
        self._stage, self._task = "", None

    def _line(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)
