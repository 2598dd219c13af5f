"""How a process of our own is started for a GPU, and ended: an isolated interpreter without the caller's secrets."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

KEEP_ENV = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "USER", "KGEN_CUTE_RUNTIME", "CC", "CXX")
KEEP_PREFIXES = ("CUDA_", "NVIDIA_", "TRITON_", "TORCHINDUCTOR_", "NCCL_", "TORCH_")
BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; sys.exit(main(sys.argv[2:]))"
)
KILL_SECONDS = 30.0  # a killed process that is still there waits for a driver that does not answer


def child_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in KEEP_ENV or k.startswith(KEEP_PREFIXES)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def command(module: str, *arguments: str) -> list[str]:
    """Runs `main(arguments)` of a module; the child imports from where its caller does: a kit's own kgen."""
    given = tuple(filter(None, sys.path))
    paths = _resolved(given, "" if all(map(os.path.isabs, given)) else str(Path.cwd()))
    return [sys.executable, "-I", "-W", "ignore", "-c", BOOT.format(module=module), paths, *arguments]


@functools.lru_cache(maxsize=8)  # jobs come by the hundred, and a path is looked up part by part
def _resolved(paths: tuple[str, ...], _: str) -> str:
    """Those that are there, as JSON. Relative ones are below the working folder, which is then named too."""
    return json.dumps([str(Path(p).resolve()) for p in paths if Path(p).exists()])


class Process(Protocol):
    """As much of subprocess.Popen as whoever watches one needs."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def end(process: Process, seconds: float = KILL_SECONDS) -> bool:
    """Kill a process and its group; False when it is not gone after `seconds`."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
