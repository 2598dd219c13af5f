"""The judge's handle on one warm build server: starting it in the sandbox, asking it, noticing its death."""

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kgen.gates.builder
import kgen.gates.sandbox
from kgen.gates.builder.outcome import BuilderError, clean
from kgen.gates.builder.protocol import JobEnd
from kgen.gates.sandbox import Box, Level, Limits
from kgen.gates.sandbox.levels import DEVICES, SYSTEM, python_paths
from kgen.gates.sandbox.process import CappedReader, kill_group

START_SECONDS = 60.0  # importing the compiler takes one second; a cold disk may take many
PACKAGES = ("cutlass", "cuda", "tvm_ffi", "typing_extensions")  # imported inside, wherever they are installed


@dataclass
class _Waiting:
    done: threading.Event = field(default_factory=threading.Event)
    end: JobEnd | None = None


def _package_folders() -> tuple[str, ...]:
    """The folders of sys.path that the compiler's packages are in. Raises BuilderError naming what is missing."""
    out: dict[str, None] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise BuilderError(f"{name} is not installed: pip install nvidia-cutlass-dsl apache-tvm-ffi")
        for place in list(spec.submodule_search_locations or []) or [spec.origin or ""]:
            parent = Path(place).parent
            # the compiler's shared libraries lie beside the folder of its packages
            out[str(parent.parent.parent if parent.name == "dsl_packages" else parent)] = None
    return tuple(out)


def bootstrap(call: str, arguments: list[Any]) -> str:
    """Python text that gives the sandbox just the two packages of kgen that it needs, and calls `MODULE:FUNCTION`."""
    module, _, function = call.partition(":")
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
        f"from {module} import {function}\n{function}(*{arguments!r})\n"
    )


class WarmServer:
    """One warm server. The thread that starts it also listens to it: it dies with that thread."""

    def __init__(self, level: Level, arch: str, root: Path, builds: bool = True) -> None:
        """`builds`: else it runs probes of the sandbox, without a compiler."""
        self._level, self._arch, self._root, self._builds = level, arch, root, builds
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
        read = (*(_package_folders() if self._builds else ()), *own)
        # importing the compiler wants a temporary folder
        home = Path(tempfile.mkdtemp(prefix=f"home-{self._arch}-", dir=self._root))
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
        # not -I: it would ignore PYTHONHASHSEED, and builds that iterate over sets would differ from run to run
        arguments = [self._job_reads(read), self._level.job_policy(), self._builds]
        argv = [sys.executable, "-P", "-s", "-S", "-c", bootstrap("kgen.gates.builder.server:main", arguments)]
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
        return [*SYSTEM, *python_paths(), *DEVICES, *read]

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
