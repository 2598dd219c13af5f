"""The foreign files of a kit: CuTe DSL runtime libraries, tvm-ffi and llguidance, installed or from wheels.

tvm-ffi's Python module is built per Python version, so wheels are fetched with pip for each of them, at the installed
version; llguidance has one module for all of them.
Not covered: other platforms than the one that builds the kit (the objects are host code too).
"""

import importlib.util
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from kgen.serve.runtime import LIBRARY, installed_flavours

TVM_FFI, CUTLASS, LLGUIDANCE = "apache-tvm-ffi", "nvidia-cutlass-dsl", "llguidance"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
GLIBC = (28, 27, 24, 17)  # manylinux_2_N tags in use; pip matches N exactly
UNUSED = frozenset({"3rdparty", "src", "include", "cython", "share", "stub", "testing", "__pycache__"})  # of tvm_ffi
LIBRARIES = frozenset({"libtvm_ffi.so", "libtvm_ffi_testing.so"})  # its core module needs both
BRIDGES = frozenset({"cli", "hf", "llamacpp", "mlx", "numpy", "tiktoken", "torch"})  # of llguidance, to others; unused
PIP_SECONDS = 600
Wanted = Callable[[PurePosixPath], bool]  # whether a kit carries a file of a package


class KitError(Exception):
    """A kit cannot be made here; one line that says what is missing."""


@dataclass(frozen=True)
class Piece:
    """One file of a kit. `python` ("3.12") or `flavour` ("cu13") restrict where it is unpacked; "" is everywhere."""

    path: str  # inside the unpacked kit
    data: bytes
    python: str = ""
    flavour: str = ""


def tvm_ffi_pieces(pythons: Sequence[str], cache: Path) -> list[Piece]:
    """tvm-ffi's importable part for each Python version. Raises KitError."""
    version = _version(TVM_FFI)
    pieces: list[Piece] = []
    for python in pythons:
        own = list(_installed(TVM_FFI, _of_tvm_ffi, python)) if python == HERE else []
        pieces += own or _from_wheel(_wheel(TVM_FFI, version, python, cache), _of_tvm_ffi, python)
    shared = {p.path: p.data for p in pieces}
    same = {p.path for p in pieces if all(q.data == shared[q.path] for q in pieces if q.path == p.path)}
    everywhere = {p.path: len({q.python for q in pieces if q.path == p.path}) == len(pythons) for p in pieces}
    common = {p.path: Piece(p.path, p.data) for p in pieces if p.path in same and everywhere[p.path]}
    return [*common.values(), *(p for p in pieces if p.path not in common), _typing_extensions()]


def llguidance_pieces(cache: Path) -> list[Piece]:
    """What the constrained part of the model gate imports, for every Python version at once. Raises KitError."""
    version = _version(LLGUIDANCE)
    found = list(_installed(LLGUIDANCE, _of_llguidance, ""))
    return found or list(_from_wheel(_wheel(LLGUIDANCE, version, HERE, cache), _of_llguidance, ""))


def runtime_pieces(flavours: Sequence[str], cache: Path) -> list[Piece]:
    """libcute_dsl_runtime.so of each CUDA flavour: the installed one, else from its wheel. Raises KitError."""
    installed = installed_flavours()
    pieces = []
    for flavour in flavours:
        path = installed.get(flavour)
        data = path.read_bytes() if path else _runtime_from_wheel(flavour, cache)
        pieces.append(Piece(f"native/{flavour}/{LIBRARY}", data, flavour=flavour))
    return pieces


def _runtime_from_wheel(flavour: str, cache: Path) -> bytes:
    wheel = _wheel(f"{CUTLASS}-libs-{flavour}", _version(CUTLASS), HERE, cache)
    with zipfile.ZipFile(wheel) as archive:
        wanted = f"/{flavour}/lib/{LIBRARY}"
        name = next((n for n in archive.namelist() if n.endswith(wanted)), None)
        if name is None:
            raise KitError(f"{wheel.name} holds no {LIBRARY}")
        return archive.read(name)


def _installed(package: str, wanted: Wanted, python: str) -> Iterator[Piece]:
    """Files of a package that is installed here; none when its list of files is missing."""
    for file in metadata.distribution(package).files or []:
        if wanted(PurePosixPath(file.as_posix())):
            yield Piece(f"lib/{file.as_posix()}", Path(str(file.locate())).read_bytes(), python=python)


def _from_wheel(wheel: Path, wanted: Wanted, python: str) -> Iterator[Piece]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if wanted(PurePosixPath(name)):
                yield Piece(f"lib/{name}", archive.read(name), python=python)


def _of_any(path: PurePosixPath) -> bool:
    """The version, and what the licence asks to carry along."""
    return path.parts[0].endswith(".dist-info") and path.name in ("METADATA", "LICENSE", "NOTICE")


def _of_llguidance(path: PurePosixPath) -> bool:
    if path.parts[0] != "llguidance":
        return _of_any(path)
    return path.suffix == ".so" or (path.suffix == ".py" and path.stem not in BRIDGES)


def _of_tvm_ffi(path: PurePosixPath) -> bool:
    if _of_any(path):
        return True
    if path.parts[0] != "tvm_ffi" or UNUSED & set(path.parts):
        return False
    module = path.name.startswith("core.") and path.suffix == ".so"
    return module or path.suffix == ".py" or path.name in LIBRARIES


def _typing_extensions() -> Piece:
    """tvm-ffi's one dependency: torch brings it along, but maybe an older one."""
    spec = importlib.util.find_spec("typing_extensions")
    if spec is None or spec.origin is None:
        raise KitError("typing_extensions is not installed here: pip install typing_extensions")
    return Piece("lib/typing_extensions.py", Path(spec.origin).read_bytes())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise KitError(f"{package} is not installed here: pip install {package}") from None


def _wheel(package: str, version: str, python: str, cache: Path) -> Path:
    """A wheel for this platform and another Python, fetched once. Raises KitError with pip's last word."""
    folder = cache / "wheels" / f"{package}-{version}-py{python}"
    if not (found := sorted(folder.glob("*.whl"))):
        folder.mkdir(parents=True, exist_ok=True)
        tags = [a for n in GLIBC for a in ("--platform", f"manylinux_2_{n}_{platform.machine()}")]
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *tags]
        _pip([*command, "-d", str(folder), f"{package}=={version}"], f"{package} {version} for Python {python}")
        found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise KitError(f"{folder} holds {len(found)} wheels instead of one; delete it and try again")
    return found[0]


def _pip(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise KitError(f"pip did not fetch {what} within {PIP_SECONDS} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise KitError(f"pip could not fetch {what}: {last[:300]}")
