"""One mutant, one forked process: killed, out of time, or alive.

    in_fork(work, deadline) -> str       "killed", "timeout" or "alive"; `work` says whether all tests passed
    swap(known, mutant, source)          puts a mutant's code into the functions that exist
    rebind(module, tree)                 puts a mutant's constants and defaults where the original's are

Nothing is imported again. So a value that a test has taken from the code while it was collected stays the original's.
"""

import ast
import contextlib
import gc
import inspect
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mutation.areas import ROOT
from mutation.mutants import Mutant, mutated
from mutation.session import WORK

Known = dict[tuple[str, str], list[FunctionType]]  # (module, qualified name) -> the function objects that exist
KILLED, TIMEOUT, ALIVE = "killed", "timeout", "alive"
MEMORY = 6 << 30  # bytes of data a mutant may take
ALIVE_STATUS, KILLED_STATUS, CHANGED_STATUS = 0, 1, 3


class Changed(RuntimeError):
    """A module's text and what was imported of it differ."""


def in_fork(work: Callable[[Path], bool], deadline: float) -> str:
    """Anything but "all passed" is a kill; a mutant that hangs is stopped at the deadline."""
    WORK.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=WORK))
    if (pid := os.fork()) == 0:
        status = KILLED_STATUS
        try:
            _quiet(folder)
            status = ALIVE_STATUS if work(folder) else KILLED_STATUS
        except Changed:
            status = CHANGED_STATUS
        finally:
            os._exit(status)
    try:
        return _waited(pid, deadline)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _quiet(folder: Path) -> None:
    """A session of its own, so that all it starts can be stopped; no output; a limit of memory."""
    os.setsid()
    with (folder / "output").open("w") as sink:
        for stream in (1, 2):
            os.dup2(sink.fileno(), stream)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _waited(pid: int, deadline: float) -> str:
    end, pause = time.monotonic() + deadline, 0.002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return TIMEOUT
        time.sleep(pause)
        pause = min(0.05, 1.5 * pause)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what its tests have left running
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == CHANGED_STATUS:
        raise Changed("a module has been edited since this started: start again")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return TIMEOUT
    return ALIVE if status == ALIVE_STATUS else KILLED


def functions(modules: Sequence[str]) -> Known:
    """Every function object of these modules that exists now, by (module, qualified name)."""
    files = {str(ROOT / m): m for m in modules}
    found: Known = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and (module := files.get(each.__code__.co_filename)):
            found.setdefault((module, each.__code__.co_qualname), []).append(each)
    return found


def swap(known: Known, mutant: Mutant, source: str) -> None:
    """Gives every function object of the mutant's name its code; who holds the object, runs the mutant."""
    tree = mutated(source, mutant)
    if mutant.function:
        put(known, mutant.module, mutant.function, tree)
    else:
        rebind(mutant.module, tree)


def put(known: Known, module: str, function: str, tree: ast.Module) -> None:
    """Gives a function of a module the code that it has in this tree."""
    new = [c for c in _codes(compile(tree, str(ROOT / module), "exec")) if c.co_qualname == function]
    for each in known.get((module, function), ()):
        same = [c for c in new if c.co_firstlineno == each.__code__.co_firstlineno]
        if not same:
            raise Changed(f"{module} is not what was imported: it has been edited since; start again")
        each.__code__ = same[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def rebind(module: str, tree: ast.Module) -> None:
    """What the mutant makes at import takes the place of what the original made, wherever it is held by its name.

    That is: numbers, texts and tables, and the defaults of functions and fields. The rest stays.
    """
    path = str(ROOT / module)
    old = next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == path)
    new = ModuleType(old.__name__)
    vars(new).update({name: getattr(old, name) for name in ("__file__", "__package__", "__spec__")})
    exec(compile(tree, path, "exec"), vars(new))
    for name, made in vars(new).items():
        was = vars(old).get(name)
        if isinstance(made, FunctionType | type) and getattr(made, "__module__", "") == old.__name__:
            _defaults(was, made)
        elif _differs(was, made):
            for holder in list(sys.modules.values()):
                if vars(holder).get(name) is was:
                    setattr(holder, name, made)


def _defaults(was: Any, made: Any) -> None:
    if isinstance(made, type):
        for name, inner in list(vars(made).items()):
            held = vars(was).get(name)
            if isinstance(inner, FunctionType):
                _defaults(held, inner)
            elif not name.startswith("__") and _differs(held, inner):
                setattr(was, name, inner)
        return
    was = inspect.unwrap(was)
    if repr(was.__defaults__) != repr(made.__defaults__):
        was.__defaults__ = made.__defaults__
    if repr(was.__kwdefaults__) != repr(made.__kwdefaults__):
        was.__kwdefaults__ = made.__kwdefaults__


def _differs(was: object, made: object) -> bool:
    plain = isinstance(made, int | float | str | bytes | tuple | list | dict | frozenset | re.Pattern)
    return plain and " at 0x" not in repr(made) and repr(was) != repr(made)
