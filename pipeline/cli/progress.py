"""What a run looks like while it works: a live screen on a terminal, plain lines elsewhere. All on stderr.

Given the run, the screen is that of `kgen watch`, and other shells are told the stage at hand, whatever is shown here.
"""

import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kgen.cli.boundary import raise_lost_interrupt
from kgen.cli.glance import Beacon, Stage, glance
from kgen.cli.watch import picture
from kgen.contract.op import Op
from kgen.loop.events import Event
from kgen.records import Status
from kgen.store.errors import IntegrityError, StoreError
from kgen.store.runs import Run

LOOK_S = 1.0  # between two looks at the run's folder
STYLE = {Status.PASS: "green", Status.FAIL: "red", Status.ERROR: "yellow", Status.SKIP: "cyan"}


class Watcher(AbstractContextManager["Watcher"]):
    """An observer of a run. `quiet`: nothing at all is shown here."""

    def __init__(self, quiet: bool = False, run: Run | None = None, op: Op | None = None) -> None:
        self.quiet, self.run, self.op = quiet, run, op
        self._beacon = Beacon(run) if run is not None else None
        self._picture: tuple[float, RenderableType] = (0.0, "")
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
            shown = Live(get_renderable=self._screen, console=self.console, refresh_per_second=8, transient=True)
            self._stack.enter_context(shown)
        return self

    def _screen(self) -> RenderableType:
        """The bar of the stage, and the run's folder as it was within the last second."""
        assert self._progress is not None
        if self.run is None or self.op is None:
            return self._progress
        when, seen = self._picture
        if time.monotonic() - when >= LOOK_S:
            with suppress(StoreError, IntegrityError, OSError):  # what was seen stays
                seen = picture(glance(self.run, self.op))
            self._picture = (time.monotonic(), seen)
        return Group(seen, self._progress)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._close_stage()
        self._stack.close()
        if self._beacon is not None:
            self._beacon.out()

    def __call__(self, event: Event) -> None:
        raise_lost_interrupt()
        with self._lock:
            self._tell(event)
            if self.quiet:
                return
            {"say": self._say, "stage": self._begin, "step": self._step}[event.kind](event)

    def _tell(self, event: Event) -> None:
        """Other shells, of the stage."""
        if self._beacon is None or event.kind == "say":
            return
        now = self._beacon.stage
        if event.kind == "stage":
            self._beacon.show(Stage(event.text, 0, event.total))
        else:
            done = min(now.done + 1, now.total)
            self._beacon.show(Stage(now.text, done, now.total, event.candidate or now.candidate), at_once=False)

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
