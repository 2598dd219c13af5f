"""The worker process as the server sees it: runs are handed over, and what comes of them is remembered.

    labour.wake(run)      take the run through the gates as far as it has submissions, after those handed over before
    labour.about(run)     queued, working on which stage, ended why, or failed with which line
    labour.close()        the worker leaves its run as an interrupt would, and ends

The worker starts with the first run and is started again after it died. Not covered: what it does (`worker`).
"""

import json
import logging
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kgen.agents.worker import BEGUN, ENDED, FAILED, STAGE

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-I", "-m", "kgen.agents.worker")
GRACE_SECONDS = 1.5  # clients kill a server two seconds after they closed its stdin
QUEUED, WORKING, IDLE = "queued", "working", "idle"


@dataclass(frozen=True)
class News:
    """`state`: queued, working or idle. `text`: the stage in work, or why the run ended. `error`: what went wrong."""

    state: str = IDLE
    text: str = ""
    error: str = ""


class Labour:
    """Thread-safe. `cache` and `kernels` as `kgen propose` has them."""

    def __init__(self, cache: Path, kernels: Path, command: tuple[str, ...] = COMMAND) -> None:
        self.cache, self.kernels, self.command = cache, kernels, command
        self._lock = threading.Lock()
        self._news: dict[str, News] = {}
        self._waiting: dict[str, int] = {}  # jobs handed over and not begun, by run
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def about(self, run: Path) -> News:
        with self._lock:
            return self._news.get(str(run), News())

    def ahead(self, run: Path) -> int:
        """How many runs are queued or in work besides this one."""
        with self._lock:
            return sum(n.state != IDLE for name, n in self._news.items() if name != str(run))

    def wake(self, run: Path) -> None:
        """Nothing to do where the run is queued already: whoever works on it next takes all that is submitted."""
        name = str(run)
        with self._lock:
            if self._closed or self._waiting.get(name):
                return
            process = self._running()
            self._waiting[name] = 1
            if self._news.get(name, News()).state != WORKING:
                self._news[name] = News(QUEUED)
            job = {"run": name, "cache": str(self.cache), "kernels": str(self.kernels)}
            assert process.stdin is not None  # a pipe
            with suppress(BrokenPipeError):  # it died just now: `_listen` says so
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", start_new_session=True
            )
            threading.Thread(target=self._listen, args=(self._process,), name="kgen-labour", daemon=True).start()
        return self._process

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            said = json.loads(line)
            with self._lock:
                self._heard(said["run"], said["what"], said["text"])
        code = process.wait()
        with self._lock:
            for name, news in self._news.items():
                if news.state != IDLE and not self._closed:
                    self._news[name] = News(error=f"the worker process ended with status {code}; submit again to go on")
            self._waiting.clear()

    def _heard(self, run: str, what: str, text: str) -> None:
        if what == BEGUN:
            self._waiting.pop(run, None)
            self._news[run] = News(WORKING, "beginning")
        elif what == STAGE:
            self._news[run] = News(WORKING, text)
        elif what in (ENDED, FAILED):
            log.info("%s: %s", Path(run).name, text or "waits for the next submission")
            error = text if what == FAILED else ""
            again = bool(self._waiting.get(run))  # submitted meanwhile
            self._news[run] = News(QUEUED) if again else News(IDLE, "" if error else text, error)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(BrokenPipeError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
