"""A wheel for serving hosts: the promoted artefacts, `kgen.serve` with the vLLM plugin, and nothing else of kgen.

    wheel(part, out) -> WheelFile       the same part gives the same bytes

It holds the import package `kgen`, so it takes the place of kgen and cannot stand beside it in one environment.
Objects are machine code for one platform, and the wheel's tag says which. Not covered: the packages that it needs.
"""

import base64
import hashlib
import importlib.metadata
import io
import platform
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kgen
from kgen.export.part import BUILTIN, Part, serving_code
from kgen.store.durable import DURABLE

NAME = "kgen_serve"
NEEDED = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi")  # of what kgen itself requires
EPOCH = (1980, 1, 1, 0, 0, 0)
PLUGIN = "[vllm.general_plugins]\nkgen = kgen.serve.vllm:register\n"
SUMMARY = "Promoted kernels of kgen, and what serves them."


@dataclass(frozen=True)
class WheelFile:
    path: Path
    bytes: int
    points: int
    archs: tuple[str, ...]


def wheel(part: Part, out: Path) -> WheelFile:
    """Write `out`/kgen_serve-VERSION-py3-none-PLATFORM.whl. The version ends in the number of the set's last change."""
    version, tag = f"{kgen.__version__}+set{part.manifest.seq}", f"py3-none-linux_{platform.machine()}"
    info = f"{NAME}-{version}.dist-info"
    files = {
        **serving_code(("kgen.serve.vllm", "kgen.serve.vllm.model")),
        **{f"{BUILTIN}/{path}": data for path, data in part.files.items()},
        f"{info}/METADATA": _metadata(version).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: kgen\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{info}/entry_points.txt": PLUGIN.encode(),
    }
    path = out / f"{NAME}-{version}-{tag}.whl"
    data = _zipped({**files, f"{info}/RECORD": _record(files, info)})
    DURABLE.write(path, data)
    return WheelFile(path, len(data), len(part.keys), part.archs)


def _metadata(version: str) -> str:
    wanted = [r for r in importlib.metadata.requires("kgen") or () if re.split(r"[^\w.-]", r)[0] in NEEDED]
    head = f"Metadata-Version: 2.4\nName: kgen-serve\nVersion: {version}\nSummary: {SUMMARY}\n"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in wanted)
    return f"{head}License-Expression: Apache-2.0\nRequires-Python: >=3.11\n{needs}"


def _record(files: Mapping[str, bytes], info: str) -> bytes:
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()


def _zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()
