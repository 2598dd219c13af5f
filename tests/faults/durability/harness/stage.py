"""A process below the file layer that has imported kgen once, and forks a child for each job that it is told.

    python stage.py '{"module": "kgen.store.durable", "edits": [["old", "new"]], "jobs": ["..."]}'

A request is a line of JSON, a list of jobs that run at once; the answer is a line with what became of each. Edits give
this process a weakened copy of a module, for everything that imports it. Not covered: starting it (`layer`).
"""

import ctypes
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

if __name__ == "__main__":  # a script's own folder is no place to import from
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from exploits.harness.off import changed

Job = Callable[[Path, dict[str, Any]], Any]
LAYER = ctypes.CDLL(None)
BOUNDARY = "kgen.cli.boundary"


class EditedLoader(importlib.machinery.SourceFileLoader):
    """Compiles the edited text, and keeps nothing."""

    edits: tuple[tuple[str, str], ...] = ()

    def get_code(self, fullname: str) -> CodeType:
        text = changed(Path(self.path).read_text(encoding="utf-8"), self.edits, fullname)
        return compile(text, self.path, "exec")


class Weakened:
    """Finds one module with an edited text, and leaves the others to the usual finders."""

    def __init__(self, module: str, edits: Sequence[Sequence[str]]) -> None:
        self.module = module
        self.edits = tuple((old, new) for old, new in edits)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.module:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]  # a finder by its one method
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        spec.loader = loader = EditedLoader(name, spec.origin)
        loader.edits = self.edits
        return spec


def run_job(jobs: dict[str, Job], order: dict[str, Any]) -> dict[str, Any]:
    """In a child: the job below the armed layer. An exception becomes the exit code and the line of the CLI."""
    boundary = importlib.import_module(BOUNDARY)
    said = os.memfd_create("said")
    os.dup2(said, 1)
    os.dup2(said, 2)
    LAYER.layer_quirks(order.get("lock", 0), order.get("folder_sync", 0))
    LAYER.layer_clock(ctypes.c_long(order.get("clock", 0)))
    how, at, number, delay = (order.get(k, 0) for k in ("how", "at", "errno", "delay"))
    log = order.get("log", "").encode()
    LAYER.layer_arm(order["root"].encode(), log, how, ctypes.c_long(at), number, ctypes.c_long(delay))
    code, line, value = 0, "", None
    try:
        value = jobs[order["job"]](Path(order["root"]), order.get("args", {}))
    except Exception as error:  # noqa: BLE001  # as the boundary of the CLI does
        code, line = boundary.exit_code(error), boundary._line(error)
    LAYER.layer_disarm()
    LAYER.layer_count.restype = ctypes.c_long
    sys.stdout.flush()
    sys.stderr.flush()
    text = os.pread(said, 1 << 20, 0).decode("utf-8", "replace")
    return {"code": code, "line": line, "value": value, "count": LAYER.layer_count(), "said": text}


def forked(jobs: dict[str, Job], order: dict[str, Any]) -> tuple[int, int]:
    """The child's number, and the pipe that its answer comes through."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    status = 1
    try:
        os.write(writing, json.dumps(run_job(jobs, order)).encode())
        status = 0
    finally:
        os._exit(status)


def answer(jobs: dict[str, Job], orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    children = [forked(jobs, order) for order in orders]
    found = []
    for child, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found.append({"status": status, **(json.loads(data) if data else {})})
    return found


def main() -> None:
    setup = json.loads(sys.argv[1])
    os.environ.pop("LD_PRELOAD", None)  # of this process alone, not of what it starts
    if setup["module"]:
        sys.meta_path.insert(0, Weakened(setup["module"], setup["edits"]))  # type: ignore[arg-type]
    importlib.import_module(BOUNDARY)  # before the first fork, and after the weakening
    jobs: dict[str, Job] = {}
    for name in setup["jobs"]:
        jobs |= importlib.import_module(name).JOBS
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(jobs, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
