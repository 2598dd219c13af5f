"""The judge's end of the builder: job folders, one warm server an architecture, restarts.

Failures of a candidate come back as `BuildFailure`; failures of the sandbox or of a server raise `BuilderError`.
"""

import shutil
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from kgen.gates import leftovers
from kgen.gates.builder.outcome import BuilderError, BuildFailure, Built, collect
from kgen.gates.builder.protocol import SOURCE, JobEnd, Signature
from kgen.gates.builder.warm import START_SECONDS, WarmServer
from kgen.gates.sandbox import Level, Limits, choose

__all__ = ["BuildFailure", "Builder", "BuilderError", "Built", "Signature"]

FOLDERS = "kgen-build"
WALL_SECONDS = 60.0  # a job; 20 s is ample on an idle machine


class Builder:
    """Builds candidates in the sandbox. A context manager; thread-safe: call `build` from as many threads as cores."""

    def __init__(
        self, level: Level | None = None, limits: Limits | None = None, wall_seconds: float = WALL_SECONDS
    ) -> None:
        """Sweeps up after killed judges. Raises NoSandboxError when no isolation level works here."""
        self.level = level or choose()
        self._limits = limits or Limits()
        self._wall = wall_seconds
        base = Path(tempfile.gettempdir())
        leftovers.sweep(FOLDERS, base)
        self.root = leftovers.fresh(FOLDERS, base)
        self.root.chmod(0o755)
        self._servers: dict[str, WarmServer] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._closed = False
        self.starts = 0  # servers started so far

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends every server; builds still running raise BuilderError."""
        with self._lock:
            self._closed = True
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def build(self, source: str, signature: Signature, defect: str = "") -> Built | BuildFailure:
        """Build one candidate for one problem. Raises BuilderError when the failure is ours."""
        with self._lock:
            if self._closed:
                raise BuilderError("the builder is closed")
            self._next += 1
            number = self._next
        folder = self.root / str(number)
        try:
            self._prepare(folder, source)
            end = self._ask(number, folder, signature, defect)
            return collect(folder, end, self._limits)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self, folder: Path, source: str) -> None:
        try:
            folder.mkdir()
            (folder / SOURCE).write_text(source, encoding="utf-8", newline="")
            (folder / SOURCE).chmod(0o644)
            self.level.prepare(folder)
        except OSError as error:
            raise BuilderError(f"cannot prepare a job folder: {error}") from error

    def _ask(self, number: int, folder: Path, signature: Signature, defect: str) -> JobEnd:
        request = {
            "id": number,
            "folder": str(folder),
            "signature": signature.to_json(),
            "defect": defect,
            "seconds": self._wall,
            "limits": vars(self.level.job_limits(self._limits)),
        }
        for attempt in (1, 2):
            server = self._server(signature.arch)
            try:
                return server.ask(request, self._wall + START_SECONDS)
            except BuilderError:
                if attempt == 2:
                    raise
        raise AssertionError

    def _server(self, arch: str) -> WarmServer:
        with self._lock:
            if self._closed:
                raise BuilderError("the builder is closed")
            server = self._servers.get(arch)
            if server is None or server.dead:
                if server is not None:
                    server.close()
                server = self._servers[arch] = WarmServer(self.level, arch, self.root)
                self.starts += 1
            return server
