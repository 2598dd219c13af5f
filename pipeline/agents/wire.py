"""stdin and stdout of a server that speaks a protocol on them: lines of bounded length in, and nothing else out.

While it is open, file descriptor 0 is empty and 1 is stderr, so that no child and no library can disturb the protocol.
"""

import os
import queue
import sys
import threading
from typing import BinaryIO

MAX_LINE = 2_000_000  # bytes of one message; the largest candidate is an eighth of that
POLL_SECONDS = 0.2
NO_MESSAGE = "{}\n"  # stands for a line that is too long: valid JSON, no valid request


class Lines:
    """Lines of a stream, read by a thread of its own, so that whoever waits for one can be told to stop."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stopped = threading.Event()
        threading.Thread(target=self._read, name="kgen-stdin", daemon=True).start()

    def _read(self) -> None:
        while line := self._stream.readline(MAX_LINE):
            if len(line) == MAX_LINE and not line.endswith(b"\n"):
                while (rest := self._stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                    pass
                self._lines.put(NO_MESSAGE)
            elif line.strip():
                self._lines.put(line.decode("utf-8", errors="replace"))
        self.stop()

    def readline(self) -> str:
        """The next line, "" at the end."""
        while True:
            try:
                return self._lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self._stopped.is_set():
                    return ""

    def stop(self) -> None:
        self._stopped.set()


def claim() -> tuple[Lines, BinaryIO]:
    """The protocol's input and output; from now on nothing else of this process reaches them."""
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return Lines(os.fdopen(source, "rb")), os.fdopen(sink, "wb")
