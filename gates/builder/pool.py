"""The judge's end of the builder: job folders, one warm server an architecture, restarts, and reading what a job left.

Failures of a candidate come back as `BuildFailure`; failures of the sandbox or of a server raise `BuilderError`.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import kgen.gates.builder
import kgen.gates.sandbox
from kgen.gates.builder.protocol import ANSI, CUBIN, OBJECT, PTX, RESULT, SOURCE, JobEnd, Signature
from kgen.gates.sandbox import Box, Level, Limits, choose
from kgen.gates.sandbox.process import CappedReader, kill_group

START_SECONDS = 60.0  # importing the compiler takes one second; a cold disk may take many
WALL_SECONDS = 60.0  # a job; 20 s is ample on an idle machine
CAPS = {OBJECT: 4 << 20, CUBIN: 4 << 20, PTX: 16 << 20, RESULT: 1 << 20}  # bytes; objects are 15-40 KB
MESSAGE_CAP = 8000  # characters of a compiler message kept for feedback
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
PACKAGES = ("cutlass", "cuda", "tvm_ffi", "typing_extensions")  # imported inside, wherever they are installed


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


@dataclass(frozen=True)
class BuildFailure:
    """The candidate's fault. `load_dependent`: another machine or moment might not fail; not worth remembering."""

    code: str
    message: str
    seconds: float
    load_dependent: bool = False


@dataclass
class _Waiting:
    done: threading.Event = field(default_factory=threading.Event)
    end: JobEnd | None = None


def clean(text: str, cap: int = MESSAGE_CAP) -> str:
    """Without ANSI and control characters; the middle is cut out beyond `cap` characters."""
    text = CONTROL.sub("", ANSI.sub("", text)).strip()
    if len(text) <= cap:
        return text
    half = cap // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"


def _package_folders() -> tuple[str, ...]:
    """Where the compiler's packages are. Raises BuilderError naming what is missing."""
    out: dict[str, None] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise BuilderError(f"{name} is not installed: pip install nvidia-cutlass-dsl apache-tvm-ffi")
        places = list(spec.submodule_search_locations or []) or [spec.origin or ""]
        for place in places:
            # the shared libraries of the compiler lie beside its packages
            parent = Path(place).parent
            out[str(parent.parent if parent.name == "dsl_packages" else Path(place))] = None
    return tuple(out)


def _bootstrap(arguments: list[Any]) -> str:
    """Python text that gives the sandbox just the two packages of kgen that it needs, and starts the server."""
    packages = {
        "kgen": [],
        "kgen.gates": [],
        "kgen.gates.builder": [str(Path(p).resolve()) for p in kgen.gates.builder.__path__],
        "kgen.gates.sandbox": [str(Path(p).resolve()) for p in kgen.gates.sandbox.__path__],
    }
    paths = [p for p in sys.path if Path(p).is_absolute() and Path(p).exists()]
    return (
        f"import sys, types\nsys.path[:] = {paths!r}\n"
        f"for name, path in {packages!r}.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n    module.__path__ = path\n"
        f"from kgen.gates.builder.server import main\nmain(*{arguments!r})\n"
    )


class _Server:
    """One warm server. The thread that starts it also listens to it: it dies with that thread."""

    def __init__(self, level: Level, arch: str, root: Path) -> None:
        self._level, self._arch, self._root = level, arch, root
        self._waiting: dict[int, _Waiting] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: CappedReader | None = None
        self.dead = False
        self._why = ""
        threading.Thread(target=self._live, daemon=True, name=f"kgen-builder-{arch}").start()
        if not self._ready.wait(START_SECONDS) or self.dead:
            self.close()
            raise BuilderError(f"the build server did not start: {self._last_words()}")

    def _live(self) -> None:
        try:
            self._start()
            self._listen()
        except (OSError, ValueError, KeyError, TypeError, BuilderError) as error:
            self._why = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                self.dead = True
                left, self._waiting = list(self._waiting.values()), {}
            for waiting in left:
                waiting.done.set()
            self._ready.set()

    def _start(self) -> None:
        own = tuple(str(Path(p).resolve()) for m in (kgen.gates.builder, kgen.gates.sandbox) for p in m.__path__)
        read = (*_package_folders(), *own)
        home = self._root / f"home-{self._arch}-{id(self)}"  # importing the compiler wants a temporary folder
        home.mkdir()
        self._level.prepare(home)
        env = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "TMPDIR": str(home),
            "CUTE_DSL_ARCH": self._arch,
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
            "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }
        # the server only waits; each job gets limits of its own, and the server none on CPU time
        box = Box(self._root, read, env, Limits(cpu_seconds=0, open_files=1024))
        argv = [sys.executable, "-I", "-S", "-c", _bootstrap([self._job_reads(read), self._job_policy()])]
        self._process = subprocess.Popen(
            self._level.wrap(box, argv),
            env=env,
            cwd=self._root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self._errors = CappedReader(self._process.stderr, 1 << 16)

    def _job_reads(self, read: tuple[str, ...]) -> list[str]:
        from kgen.gates.sandbox.levels import DEVICES, SYSTEM, python_paths

        return [*SYSTEM, *python_paths(), *DEVICES, *read]

    def _job_policy(self) -> dict[str, Any]:
        from kgen.gates.sandbox.fence import landlock_abi

        if self._level.name == "none":
            return {"landlock": False, "seccomp": ""}
        keep = self._level.name == "unshare" and self._level.own_user  # walks through private parent folders
        return {"landlock": landlock_abi() > 0, "seccomp": "job", "drop_capabilities": not keep}

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            body = json.loads(line)
            if body.pop("ready", False):
                self._ready.set()
                continue
            with self._lock:
                waiting = self._waiting.pop(body.pop("id"), None)
            if waiting is not None:
                waiting.end = JobEnd(**body)
                waiting.done.set()

    def _last_words(self) -> str:
        said = clean(self._errors.text.decode("utf-8", "replace"), 600) if self._errors else ""
        return said.splitlines()[-1] if said else self._why or "no message"

    def ask(self, request: dict[str, Any], seconds: float) -> JobEnd:
        """Wait for a job. Raises BuilderError when the server dies or does not answer."""
        waiting = _Waiting()
        with self._lock:
            if self.dead or self._process is None or self._process.stdin is None:
                raise BuilderError(f"the build server is gone: {self._last_words()}")
            self._waiting[request["id"]] = waiting
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                raise BuilderError(f"the build server is gone: {self._last_words()}") from error
        answered = waiting.done.wait(seconds)
        if waiting.end is None:
            if not answered:
                self.close()
            raise BuilderError(f"the build server {'died' if answered else 'hangs'}: {self._last_words()}")
        return waiting.end

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        kill_group(self._process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


class Builder:
    """Builds candidates in the sandbox. A context manager; thread-safe: call `build` from as many threads as cores."""

    def __init__(
        self, level: Level | None = None, limits: Limits | None = None, wall_seconds: float = WALL_SECONDS
    ) -> None:
        """Raises NoSandboxError when no isolation level works here."""
        self.level = level or choose()
        self._limits = limits or Limits()
        self._wall = wall_seconds
        self._root = Path(tempfile.mkdtemp(prefix="kgen-build-"))
        self._root.chmod(0o755)
        self._servers: dict[str, _Server] = {}
        self._lock = threading.Lock()
        self._next = 0
        self.starts = 0  # servers started so far

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def build(self, source: str, signature: Signature, defect: str = "") -> Built | BuildFailure:
        """Build one candidate for one problem. Raises BuilderError when the failure is ours."""
        with self._lock:
            self._next += 1
            number = self._next
        folder = self._root / str(number)
        folder.mkdir()
        try:
            (folder / SOURCE).write_text(source, encoding="utf-8", newline="")
            (folder / SOURCE).chmod(0o644)
            self.level.prepare(folder)
            end = self._ask(number, folder, signature, defect)
            return _collect(folder, end, self._limits)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, number: int, folder: Path, signature: Signature, defect: str) -> JobEnd:
        request = {
            "id": number,
            "folder": str(folder),
            "signature": signature.to_json(),
            "defect": defect,
            "seconds": self._wall,
            "limits": vars(self._limits),
        }
        for attempt in (1, 2):
            server = self._server(signature.arch)
            try:
                return server.ask(request, self._wall + START_SECONDS)
            except BuilderError:
                if attempt == 2:
                    raise
        raise AssertionError

    def _server(self, arch: str) -> _Server:
        with self._lock:
            server = self._servers.get(arch)
            if server is None or server.dead:
                if server is not None:
                    server.close()
                server = self._servers[arch] = _Server(self.level, arch, self._root)
                self.starts += 1
            return server


def _collect(folder: Path, end: JobEnd, limits: Limits) -> Built | BuildFailure:
    """What a finished job means. Raises BuilderError when its fence failed."""
    if not end.fenced:
        raise BuilderError(f"a job's fence could not be put up: {clean(end.output, 600)}")
    failure = _killed(end, limits)
    if failure is not None:
        return failure
    try:
        result = json.loads(read_regular(folder, RESULT).decode("utf-8"))
        if not result["ok"]:
            return BuildFailure(str(result["code"]), clean(_with_output(result["message"], end)), end.seconds)
        return Built(
            object=read_regular(folder, OBJECT),
            ptx=read_regular(folder, PTX).decode("utf-8"),
            cubin=read_regular(folder, CUBIN),
            workspaces=tuple((str(dtype), tuple(int(n) for n in shape)) for dtype, shape in result["workspaces"]),
            design=clean(str(result["design"]), 200),
            seconds=end.seconds,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = clean(end.output, 2000)
        message = f"the build left no usable result ({error}); exit status {end.returncode}\n{said}".strip()
        return BuildFailure("compile.output", message, end.seconds)


def _killed(end: JobEnd, limits: Limits) -> BuildFailure | None:
    """A job that did not end by itself."""
    said = clean(end.output)
    if end.flooded:
        return BuildFailure("compile.output", f"killed: it printed more than 8 MiB\n{said[:1000]}", end.seconds)
    if end.timed_out:
        message = f"killed after {end.seconds:.0f} s\n{said}"
        return BuildFailure("compile.timeout", message.strip(), end.seconds, load_dependent=True)
    if end.returncode >= 0:
        return None
    name = signal.Signals(-end.returncode).name
    if name == "SIGXCPU" or (name == "SIGKILL" and end.seconds >= limits.cpu_seconds):
        message = f"killed after {limits.cpu_seconds} s of CPU time\n{said}"
        return BuildFailure("compile.timeout", message.strip(), end.seconds)
    if "bad_alloc" in said or "out of memory" in said.lower():
        return BuildFailure("compile.memory", said, end.seconds)
    return BuildFailure(f"compile.crash.{name}", f"the compiler died with {name}\n{said}".strip(), end.seconds)


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
