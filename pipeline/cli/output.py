"""stdout for data, stderr for people. With --json, stdout holds exactly one JSON document and nothing else."""

import io
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kgen.records import to_json

as_json = False  # whether the command line says --json; set once, by the boundary
emitted = False


def tolerate() -> None:
    """What stdout or stderr cannot encode (locale C, a pipe in latin-1) is written as an escape and stops nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def emit(document: Any) -> None:
    """The one JSON document, on stdout."""
    global emitted
    emitted = True
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"  # then JSON's own escapes are the safe ones
    print(json.dumps(to_json(document), indent=1, sort_keys=True, ensure_ascii=plain))


def data(text: str) -> None:
    """Text that was asked for: stdout, or stderr when stdout is for JSON."""
    print(text, file=sys.stderr if as_json else sys.stdout)


def show_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> None:
    """A table by rich, on stdout (stderr with --json). Cells are data: no markup is read in them."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else 200)
    table = Table(title=Text(title) if title else None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(str(cell)) for cell in row])
    console.print(table)


def log_to_stderr(quiet: bool = False) -> None:
    """Log lines of kgen (proposers, serving) as plain lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("kgen")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
