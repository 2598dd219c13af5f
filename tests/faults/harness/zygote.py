"""A process that has imported everything and forks a `kgen` command for each request: a command starts in no time.

Started as `python -I zygote.py`, with world.c in LD_PRELOAD. A request is a JSON line on stdin:

    argv, cwd, env         of the command; stdout and stderr go to the files `out` and `err`
    edits                  [[module, [[old, new], ...]], ...]: the command runs on copies of modules edited so
    clock, slow, full, place   what goes wrong with the world (world.c)
    uid                    the user that it runs as, 0: this one
    encoding               of stdout and stderr
    read_only              a folder that is mounted read-only, "" for none

The answer is two lines: {"pid": ...} at once, {"status": ...} (negative: a signal) when it has ended.
"""

import ctypes
import importlib.abc
import importlib.util
import io
import json
import os
import sys
import warnings
from types import ModuleType
from typing import Any

CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
MODULES = ("kgen.cli.app", "kgen.cli.progress", "kgen.loop.session", "kgen.loop.graph", "kgen.report", "kgen.ops")
MODULES += (
    "openai",
    "kgen.proposers.choose",
    "kgen.gates.ingest",
    "kgen.promotion",
    "jinja2",
    "encodings.idna",
    "_strptime",
)


class Edited(importlib.abc.Loader):
    """Loads a module from its source with texts replaced; each must be there exactly once."""

    def __init__(self, path: str, edits: list[list[str]]) -> None:
        self.path, self.edits = path, edits

    def exec_module(self, module: ModuleType) -> None:
        with open(self.path, encoding="utf-8") as file:  # noqa: PTH123
            text = file.read()
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.path}: {old!r} is there {text.count(old)} times, not once"
            text = text.replace(old, new)
        exec(compile(text, self.path, "exec"), module.__dict__)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, edits: dict[str, list[list[str]]]) -> None:
        self.edits = edits

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.edits:
            return None
        edits = self.edits.pop(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        return importlib.util.spec_from_loader(name, Edited(spec.origin, edits), origin=spec.origin)


def forget(edits: list[Any]) -> None:
    """All of kgen is imported anew, the edited modules from their edited text."""
    for name in [n for n in sys.modules if n.split(".")[0] == "kgen"]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder(dict(edits)))


def read_only(folder: bytes) -> None:
    """In a mount namespace of its own, so that nobody else sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for code in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(folder, folder, None, MS_BIND, None),
        libc.mount(folder, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY, None),
    ):
        assert code == 0, os.strerror(ctypes.get_errno())


def become(request: dict[str, Any]) -> None:
    """The forked process: set the scene, then be the command."""
    os.setsid()
    for fd, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = io.TextIOWrapper(io.FileIO(0))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding=request["encoding"])
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding=request["encoding"], errors="backslashreplace")
    os.environ.clear()
    os.environ.update(request["env"])
    if request["edits"]:
        forget(request["edits"])
    if request["read_only"]:
        read_only(os.fsencode(request["read_only"]))
    os.chdir(request["cwd"])
    if request["uid"]:
        os.setgroups([])
        os.setresgid(*[request["uid"]] * 3)
        os.setresuid(*[request["uid"]] * 3)
    world = ctypes.CDLL(None).kgen_world
    world.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
    world(request["clock"], request["slow"], request["full"], os.fsencode(request["place"]))
    sys.argv = ["kgen", *request["argv"]]
    from kgen.cli import main

    main()


def main() -> None:
    warnings.simplefilter("ignore")
    for name in MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                become(request)
            except SystemExit as ended:  # taking everything down takes seconds, and shows nothing
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(int(ended.code or 0))
        print(json.dumps({"pid": pid}), flush=True)
        print(json.dumps({"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}), flush=True)


if __name__ == "__main__":
    main()
