"""What the cases share: a folder, `kgen` commands in a process of their own, a judge's builders, the run of an op.

    done = desk.kgen(home, "propose", "--op", "moe_shared", world=World(clock=-3600), off=off)
    done.exit, done.out, done.err, done.line      # `line`: the one line for the user

Not covered: commands that run beside each other (a desk runs one at a time).
"""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from exploits.harness.desk import Desk as Builders
from exploits.harness.off import NOTHING, Off
from faults.harness.swapped import without

import kgen.cli.app  # noqa: F401

HERE = Path(__file__).parent
NOBODY = 65534
SECONDS = 120.0


@dataclass(frozen=True)
class World:
    """What is wrong with the world that a command runs in; see zygote.py and world.c."""

    clock: int = 0
    slow: int = 0
    full: bool = False
    place: str = ""
    uid: int = 0
    encoding: str = "utf-8"
    read_only: str = ""


RIGHT = World()


@dataclass(frozen=True)
class Done:
    """How a command ended. `exit` is negative for a signal."""

    exit: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """What went wrong, in the one line that there must be."""
        lines = [text for text in self.err.splitlines() if text.startswith("kgen: ")]
        assert "Traceback" not in self.out + self.err, self.err
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("kgen: ")

    def says(self, *words: str) -> str:
        """`exit <n>`; ", unclear" when the one line does not hold each of these words, or is long."""
        line = self.line
        clear = all(word in line for word in words) and len(line) < 400
        return f"exit {self.exit}{'' if clear else ', unclear'}"


@dataclass
class Zygote:
    """The process that commands are forked from."""

    folder: Path
    process: "subprocess.Popen[str]" = field(init=False)

    def __post_init__(self) -> None:
        library = self.folder / "world.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(HERE / "world.c"), "-o", str(library), "-ldl"], check=True)
        library.chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-W", "ignore", str(HERE / "zygote.py")],
            env={**os.environ, "LD_PRELOAD": str(library), "LANGSMITH_TRACING": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _said(self) -> dict[str, int]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def run(self, request: dict[str, Any], meanwhile: Callable[[int], None] | None = None) -> int:
        """The status of the command; `meanwhile` is called with its pid when it has started."""
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        pid = self._said()["pid"]
        if meanwhile:
            meanwhile(pid)
        return self._said()["status"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)


@dataclass
class Desk:
    """`folder` is the test run's own; anybody may enter it. `close` ends what was started."""

    folder: Path
    _number: int = 0

    @cached_property
    def builders(self) -> Builders:
        """The desk of the exploits."""
        made = self.folder / "builders"
        made.mkdir()
        return Builders(made)

    @cached_property
    def zygote(self) -> Zygote:
        return Zygote(self.folder)

    def fresh(self, name: str = "") -> Path:
        """A new empty folder."""
        self._number += 1
        made = self.folder / f"{self._number}{name}"
        made.mkdir(mode=0o755)
        return made

    def kgen(
        self,
        home: Path,
        *argv: str,
        world: World = RIGHT,
        off: Off = NOTHING,
        env: dict[str, str] | None = None,
        meanwhile: Callable[[int], None] | None = None,
    ) -> Done:
        """A command with its runs, set and cache in `home`, and no key unless `env` has one."""
        self._number += 1
        out, err = self.folder / f"{self._number}.out", self.folder / f"{self._number}.err"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KGEN_", "OPENAI_", "COLUMNS"))}
        places = {f"KGEN_{name.upper()}": str(home / name) for name in ("runs", "set", "cache")}
        request = {
            **world.__dict__,
            "argv": argv,
            "cwd": str(home),
            "env": {**kept, **places, **(env or {})},
            "edits": [[off.module, off.edits]] if off.changes else [],
            "out": str(out),
            "err": str(err),
        }
        status = self.zygote.run(request, meanwhile)
        return Done(status, *(p.read_text(world.encoding, "replace") for p in (out, err)))

    def here(
        self, home: Path, *argv: str, off: Off = NOTHING, encoding: str = "utf-8", env: dict[str, str] | None = None
    ) -> Done:
        """The same in this process: quicker, in a world where nothing is wrong."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        places = {f"KGEN_{name.upper()}": str(home / name) for name in ("runs", "set", "cache")}
        kept = dict(os.environ)
        os.environ.update({**places, **(env or {})})
        try:
            with without(off), redirect_stdout(out), redirect_stderr(err):
                status = sys.modules["kgen.cli.boundary"].run(sys.modules["kgen.cli.app"].build(), argv)
        finally:
            os.environ.clear()
            os.environ.update(kept)
            for number, handler in before.items():
                signal.signal(number, handler)
        return Done(status, *(s.buffer.getvalue().decode(encoding, "replace") for s in (out, err)))  # type: ignore[attr-defined]

    def close(self) -> None:
        for name in ("builders", "zygote"):
            if name in self.__dict__:
                self.__dict__[name].close()


def until(ready: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for something to become so; whether it did."""
    end = time.monotonic() + seconds
    while not (there := ready()) and time.monotonic() < end:
        time.sleep(0.01)
    return there
