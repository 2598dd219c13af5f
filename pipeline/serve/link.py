"""Links an audited object into a shared library, once, in a cache keyed by its hash and the runtime libraries.

    link(object_path, sha256, cache, runtime) -> Path of the .so
        raises IntegrityError  the object (or a cached library) is not what its hash says
        raises RuntimeMissing  no C compiler
        raises LinkError       the linker refused; the message carries its first lines

The launch counter (launch_counter.c) is linked in, so that every launch of the object is counted. The libraries are
needed by their bare names: load the runtime library first (kgen.serve.launcher does).
"""

import importlib.resources
import shutil
import subprocess
import tempfile
from pathlib import Path

from kgen.records import sha256_bytes, sha256_text
from kgen.serve.runtime import Runtime, RuntimeMissing
from kgen.store.errors import IntegrityError

COUNTED = ("_cudaLaunchKernelEx", "_cudaLibraryGetKernel")
CC_SECONDS = 60
FLAGS = (
    *("-shared", "-fPIC", "-O2", "-pthread", "-Wl,-z,defs,-z,now"),  # everything resolved now, or a link error now
    *(f"-Wl,--wrap={name}" for name in COUNTED),
)


class LinkError(RuntimeError):
    """The C compiler could not link the object against the runtime libraries."""


def file_sha256(path: Path) -> str:
    return sha256_bytes(path.read_bytes())


def shim_source() -> str:
    return (importlib.resources.files("kgen.serve") / "launch_counter.c").read_text()


def link(object_path: Path, sha256: str, cache: Path, runtime: Runtime) -> Path:
    """The shared library of the object with this sha256. Safe to call from several processes."""
    data = object_path.read_bytes()
    found = sha256_bytes(data)
    if found != sha256:
        raise IntegrityError(f"{object_path} has sha256 {found[:12]}…, expected {sha256[:12]}…")
    source = shim_source()
    key = sha256_text("\n".join([sha256, runtime.key, source, *FLAGS]))[:32]
    entry = cache / key
    if not entry.is_dir():
        cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if cc is None:
            raise RuntimeMissing("no C compiler to link the kernel: install gcc (cc) and try again")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".link-") as folder:
            _link(cc, data, source, Path(folder), runtime)
            _move_in(Path(folder) / "entry", entry)
    return _sealed(entry)


def _move_in(made: Path, entry: Path) -> None:
    try:
        made.rename(entry)
    except OSError:
        if not entry.is_dir():  # else another process linked the same object meanwhile
            raise


def _sealed(entry: Path) -> Path:
    """A cached library is used only if it still has the hash it was written with."""
    library, seal = entry / "kernel.so", entry / "sha256"
    if not (library.is_file() and seal.is_file() and file_sha256(library) == seal.read_text().strip()):
        raise IntegrityError(f"{entry} is not what was linked there; delete it and try again")
    return library


def _link(cc: str, data: bytes, source: str, folder: Path, runtime: Runtime) -> None:
    (folder / "kernel.o").write_bytes(data)
    (folder / "counter.c").write_text(source)
    entry = folder / "entry"
    entry.mkdir()
    out = entry / "kernel.so"
    libraries = [str(runtime.cute_library), str(runtime.tvm_ffi_library)]
    command = [cc, *FLAGS, "-o", str(out), str(folder / "kernel.o"), str(folder / "counter.c"), *libraries]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CC_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LinkError(f"{cc} did not finish within {CC_SECONDS} s") from None
    if done.returncode != 0:
        raise LinkError(f"{cc} could not link the kernel: {done.stderr.strip()[:600]}")
    (entry / "sha256").write_text(file_sha256(out) + "\n")
