"""What a finished job means: files to audit, a failure of the candidate, or an error of ours.

Everything in a job folder is untrusted: only regular files are read, following no link, up to a cap.

A failure *lasts* when every build of the source would end in it, on any machine. Only such a failure is remembered:

| what failed                                                                             | lasts |
|-----------------------------------------------------------------------------------------|-------|
| the job ended by itself and says what is wrong with the source                          | yes   |
| the same, in words that name a resource of the machine (MACHINE below), or memory       | no    |
| killed for its time, its CPU time or its output; died of a signal; left no usable result | no    |
| the audit reads something in the object                                                 | yes   |
| the audit's linker or recorder ended badly on the object (RAN below)                    | no    |

What fails outside a job (its fence, its folder, the server, the recorder itself) is no failure of a candidate at all.
Not covered: words of a resource that MACHINE does not know.
"""

import json
import os
import re
import signal
import stat
from dataclasses import dataclass
from pathlib import Path

from kgen.gates.builder.protocol import ANSI, CUBIN, OBJECT, PTX, RESULT, JobEnd
from kgen.gates.sandbox import Limits

CAPS = {OBJECT: 4 << 20, CUBIN: 4 << 20, PTX: 8 << 20, RESULT: 1 << 20}  # bytes; objects are 15-40 KB
MESSAGE_CAP = 8000  # characters of a compiler message kept for feedback; measured ones end below 1300
Buffer = tuple[str, str, tuple[int, ...], int, int | None]  # symmetric: name, dtype, shape of one, parities, sentinel
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CODE = re.compile(r"compile(\.\w{1,40}){1,3}")
DTYPE = re.compile(r"\w{1,20}")
MACHINE = re.compile(  # words of Python, of the C library and of the compiler
    r"\[Errno \d+\]|\b(OS|IO|BlockingIO|Permission|Memory|Timeout)Error\b|bad_alloc|out of memory|pthread_create"
    r"|cannot allocate memory|memory allocation fail|resource temporarily unavailable|no space left on device"
    r"|disk quota exceeded|file too large|too many open files|read-only file system|input/output error"
    r"|permission denied|cannot open shared object|failed to map segment",
    re.IGNORECASE,
)
RAN = ("audit.link", "audit.launcher")  # found by running something, which may end for reasons of the machine's


class BuilderError(RuntimeError):
    """Ours or the machine's fault: retryable."""


@dataclass(frozen=True)
class Built:
    """The files of one build, as bytes, not yet audited."""

    object: bytes
    ptx: str
    cubin: bytes
    workspaces: tuple[tuple[str, tuple[int, ...]], ...]
    design: str
    seconds: float
    symmetric: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class BuildFailure:
    """The candidate's fault, as far as one build can tell. `lasts`: every other build would tell the same."""

    code: str
    message: str
    seconds: float
    lasts: bool = False


def clean(text: str, cap: int = MESSAGE_CAP) -> str:
    """Without ANSI and control characters and halves of characters; the middle is cut out beyond `cap` characters."""
    text = CONTROL.sub("", ANSI.sub("", text)).encode("utf-8", "replace").decode().strip()
    if len(text) <= cap:
        return text
    half = cap // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"


def collect(folder: Path, end: JobEnd, limits: Limits) -> Built | BuildFailure:
    """What a finished job means. Raises BuilderError when its fence failed."""
    if not end.fenced:
        raise BuilderError(f"a job's fence could not be put up: {clean(end.output, 600)}")
    failure = _killed(end, limits)
    if failure is not None:
        return failure
    try:
        result = json.loads(read_regular(folder, RESULT).decode("utf-8"))
        if not result["ok"]:
            code, message = _code(result["code"]), _with_output(str(result["message"]), end)
            lasts = code != "compile.memory" and not MACHINE.search(message)
            return BuildFailure(code, clean(message), end.seconds, lasts)
        return Built(
            object=read_regular(folder, OBJECT),
            ptx=read_regular(folder, PTX).decode("utf-8"),
            cubin=read_regular(folder, CUBIN),
            workspaces=tuple(_workspace(dtype, shape) for dtype, shape in result["workspaces"]),
            design=clean(str(result["design"]), 200),
            seconds=end.seconds,
            symmetric=tuple(_buffer(*entry) for entry in result.get("symmetric", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        said = clean(end.output, 2000)
        why = clean(str(error), 200)
        message = f"the build left no usable result ({why}); exit status {end.returncode}\n{said}".strip()
        return BuildFailure("compile.output", message, end.seconds)


def _code(given: object) -> str:
    """A code is a word of ours: the job's own, whatever a candidate wrote in its place."""
    return given if isinstance(given, str) and CODE.fullmatch(given) else "compile.output"


def _workspace(dtype: object, shape: object) -> tuple[str, tuple[int, ...]]:
    """Raises ValueError for what a candidate may not have declared, whoever wrote it down."""
    if not isinstance(dtype, str) or not DTYPE.fullmatch(dtype) or not isinstance(shape, list):
        raise ValueError("a workspace is a dtype and a shape")
    if not all(type(n) is int and 0 < n < 1 << 40 for n in shape):
        raise ValueError("a workspace has sizes that cannot be")
    return dtype, tuple(shape)


def _buffer(name: object, dtype: object, shape: object, parities: object, sentinel: object) -> Buffer:
    """Raises ValueError for what is no declaration; whether such a buffer can be, the contract of ranks says."""
    kind, sizes = _workspace(dtype, shape)
    if not isinstance(name, str) or type(parities) is not int or not (sentinel is None or type(sentinel) is int):
        raise ValueError("a symmetric buffer is a name, a dtype, a shape, parities and a sentinel")
    return name, kind, sizes, parities, sentinel


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal: most of them have no name
        return f"SIG{number}"


def _killed(end: JobEnd, limits: Limits) -> BuildFailure | None:
    """A job that did not end by itself."""
    said = clean(end.output)
    if end.flooded:
        return BuildFailure(
            "compile.output", f"killed: it printed more than 8 MiB or filled its folder\n{said[:1000]}", end.seconds
        )
    if end.timed_out:
        message = f"killed after {end.seconds:.0f} s\n{said}"
        return BuildFailure("compile.timeout", message.strip(), end.seconds)
    if end.returncode >= 0:
        return None
    name = _signal(-end.returncode)
    if name == "SIGXCPU" or (name == "SIGKILL" and end.seconds >= limits.cpu_seconds):
        message = f"killed after {limits.cpu_seconds} s of CPU time\n{said}"
        return BuildFailure("compile.timeout", message.strip(), end.seconds)
    if "bad_alloc" in said or "out of memory" in said.lower():
        return BuildFailure("compile.memory", said, end.seconds)
    message = f"the compiler died with {name}\n{said}".strip()
    return BuildFailure(f"compile.crash.{name}", message, end.seconds)


def _with_output(message: str, end: JobEnd) -> str:
    """The exception, and what the compiler printed beside it (ptxas logs come that way)."""
    said = end.output.strip()
    return f"{message}\n{said}" if said and said not in message else str(message)


def read_regular(folder: Path, name: str) -> bytes:
    """Bytes of a regular file directly in `folder`, following no link. Raises OSError or ValueError (too large)."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{name} is not a regular file")
        data = file.read(CAPS[name] + 1)
    if len(data) > CAPS[name]:
        raise ValueError(f"{name} is larger than {CAPS[name]} bytes")
    return data
