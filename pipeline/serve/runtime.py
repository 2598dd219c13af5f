"""Finds the two libraries that a built object needs at run time: the CuTe DSL runtime and tvm-ffi.

Neither cutlass nor tvm_ffi is imported to find them. Not covered: the compiler, and CUDA itself (torch brings it).

    find_runtime() -> Runtime       raises RuntimeMissing, one line that says what to install or set

`KGEN_CUTE_RUNTIME` names a libcute_dsl_runtime.so directly (a kit sets it); otherwise an installed
nvidia-cutlass-dsl is searched, and where both flavours are there, the one of torch's CUDA major is taken.
"""

import functools
import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

ENV_LIBRARY = "KGEN_CUTE_RUNTIME"
FLAVOURS = ("cu13", "cu12")
LIBRARY = "libcute_dsl_runtime.so"


class RuntimeMissing(RuntimeError):
    """No usable runtime library, or no C compiler: the message is one line and names the fix."""


@dataclass(frozen=True)
class Runtime:
    """`flavour` is the CUDA major that the CuTe DSL runtime library was made for: cu12 or cu13."""

    flavour: str
    cute_library: Path
    tvm_ffi_library: Path

    @property
    def key(self) -> str:
        """Names these two files' builds: what is linked against them is cached under it."""
        parts = [self.flavour]
        for path in (self.cute_library, self.tvm_ffi_library):
            stat = path.stat()
            parts.append(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}:{path}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def torch_flavour() -> str:
    """cu12 or cu13 by the CUDA that torch was built for, "" for a CPU build."""
    import torch

    return f"cu{torch.version.cuda.split('.')[0]}" if torch.version.cuda else ""


def package_folders(name: str) -> list[Path]:
    """Where a package lies (a namespace package: in several places), without importing it."""
    spec = importlib.util.find_spec(name)
    return [Path(place) for place in spec.submodule_search_locations or []] if spec else []


def installed_flavours() -> dict[str, Path]:
    """Flavour -> runtime library, of the nvidia-cutlass-dsl that is installed."""
    folders = package_folders("nvidia_cutlass_dsl")
    places = [(f, folder / f / "lib" / LIBRARY) for f in FLAVOURS for folder in reversed(folders)]
    return {f: path for f, path in places if path.is_file()}


def _cute_library() -> tuple[str, Path]:
    wanted = torch_flavour()
    if named := os.environ.get(ENV_LIBRARY):
        path = Path(named)
        if not path.is_file():
            raise RuntimeMissing(f"{ENV_LIBRARY}={named} is not a file; unset it or name a {LIBRARY}")
        match = re.search(r"cu1\d", str(path.parent))
        return (match.group() if match else wanted or FLAVOURS[0]), path
    found = installed_flavours()
    if not found:
        raise RuntimeMissing(
            f"no {LIBRARY}: pip install nvidia-cutlass-dsl (cu13: nvidia-cutlass-dsl[cu13]), or set {ENV_LIBRARY}"
        )
    flavour = wanted if wanted in found else next(iter(found))
    return flavour, found[flavour]


@functools.cache
def find_runtime() -> Runtime:
    """The runtime libraries of this process's environment. Raises RuntimeMissing."""
    flavour, library = _cute_library()
    for folder in package_folders("tvm_ffi"):
        if (tvm_ffi := folder / "lib" / "libtvm_ffi.so").is_file():
            return Runtime(flavour, library, tvm_ffi)
    raise RuntimeMissing("no tvm_ffi library: pip install apache-tvm-ffi")
