"""One promoted op as a folder in the layout of the Hugging Face `kernels` package (0.10 and later).

    hf_kernels(part, op, out) -> Folder        `kernels.get_local_kernel(out)` loads it

    README.md            a card with the points that are served
    build/torch-cuda/    metadata.json, __init__.py, own_name.py, kgen/ (the code that serves, with the set inside)
    build/torch-cpu/     the same: there every call runs the op's stock version, so that a pipeline works without a GPU

The objects need no compiler of kernels: at the first call they are linked by cc against the installed runtime library
of the CuTe DSL. Nothing of kgen has to be installed. Not covered: uploading.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.contract import Op
from kgen.export.part import BUILTIN, Part, serving_code
from kgen.records import sha256_bytes
from kgen.store.kernelset import MANIFEST, parse_problem

NEEDS: Mapping[str, tuple[str, ...]] = {"cuda": ("tvm-ffi", "nvidia-cutlass-dsl"), "cpu": ()}
MARK = "build"
OWN = frozenset({MARK, "README.md"})  # a folder with anything else in it is somebody's


@dataclass(frozen=True)
class Folder:
    path: Path
    name: str
    bytes: int
    points: int
    archs: tuple[str, ...]


def hf_kernels(part: Part, op: Op, out: Path) -> Folder:
    """Write the folder; one that was exported before is replaced. Raises FileExistsError for any other folder there."""
    if out.exists() and (not out.is_dir() or any(p.name not in OWN for p in out.iterdir())):
        raise FileExistsError(17, "exists and is no export; choose another --out", str(out))
    name, files = f"kgen-{op.name.replace('_', '-')}", _files(part, op)
    content = sha256_bytes("".join(f"{p} {sha256_bytes(d)}\n" for p, d in sorted(files.items())).encode())[:12]
    size = 0
    for backend in NEEDS:
        folder = out / MARK / f"torch-{backend}"
        if folder.exists():
            shutil.rmtree(folder)
        metadata = json.dumps(_metadata(part, name, content, backend, files), indent=2, sort_keys=True) + "\n"
        for path, data in {**files, "metadata.json": metadata.encode()}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            size += len(data)
    (out / "README.md").write_text(_readme(part, op, name), encoding="utf-8")
    return Folder(out, name, size, len(part.keys), part.archs)


def _files(part: Part, op: Op) -> dict[str, bytes]:
    """What each variant holds, metadata excepted."""
    return {
        "__init__.py": MODULE.format(op=op.name, archs=part.archs).encode(),
        "own_name.py": (Path(__file__).parent / "own_name.py").read_bytes(),
        **serving_code(),
        **{f"{BUILTIN}/{path}": data for path, data in part.files.items()},
    }


def _metadata(part: Part, name: str, content: str, backend: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """`digest` lets the `kernels` package find a changed byte before anything is imported."""
    archs = {"archs": [_capability(arch) for arch in part.archs]} if backend == "cuda" else {}
    digests = {p: base64.b64encode(hashlib.sha256(data).digest()).decode() for p, data in files.items()}
    return {
        "id": f"_{name.replace('-', '_')}_{backend}_{content}",
        "name": name,
        "version": part.manifest.seq,
        "license": "apache-2.0",
        "python-depends": list(NEEDS[backend]),
        "backend": {"type": backend, **archs},
        "digest": {"algorithm": "sha256", "files": digests},
    }


def _capability(arch: str) -> str:
    """sm_90a -> 9.0a, sm_103a -> 10.3a."""
    digits, suffix = arch.removeprefix("sm_").rstrip("af"), arch[len(arch.rstrip("af")) :]
    return f"{digits[:-1]}.{digits[-1]}{suffix}"


def _readme(part: Part, op: Op, name: str) -> str:
    problems = [parse_problem(key) for key in part.keys]
    dims = sorted({p.dims for p in problems})
    points = "\n".join(
        f"| {p.arch} | {p.dims} | {p.tokens} | {''.join(f'{k}={v} ' for k, v in sorted(p.axes.items())).strip()} |"
        for p in sorted(problems, key=lambda p: (p.arch, p.dims, p.tokens, p.key))
    )
    numbers = ", ".join(f"#{p.seq}" for p in part.manifest.promotions)
    return README.format(
        op=op.name, name=name, numbers=numbers, dims=dims[0], points=points, set=f"{BUILTIN}/{MANIFEST}"
    )


MODULE = '''\
"""`{op}` of kgen: promoted kernels, and the stock version of the op wherever none of them may serve.

    kernel = load("DIMS", tokens)              # which kernel serves: kernel.promoted, kernel.reason
    values = {{**inputs, **kernel.outputs("cuda")}}
    kernel(values)                             # tensors by name, written in place; may be captured in a CUDA graph
    points()                                   # the problems that are served
"""

from .own_name import install

install(__name__)

from .kgen.serve.load import Served, device_capability  # noqa: E402  - found since the line above
from .kgen.serve.load import load as _load  # noqa: E402
from .kgen.store.kernelset import KernelSet  # noqa: E402
from .kgen.store.paths import builtin_set  # noqa: E402

OP = "{op}"
ARCHS = {archs!r}


def points() -> list[str]:
    """The problems with a promoted kernel: op/dims/tTOKENS/arch and axes."""
    return list(KernelSet(builtin_set().path).manifest().champions)


def load(dims: str, tokens: int, arch: str = "", *, axes=None, compile=None) -> Served:
    """The kernel for `tokens` rows on this GPU. `compile` is applied to the stock version where that has to run."""
    here = device_capability()
    arch = arch or next((a for a in ARCHS if a.rstrip("af") == here), ARCHS[0])
    return _load(OP, dims, tokens, arch, set="builtin", axes=axes, compile=compile)


__all__ = ["ARCHS", "OP", "Served", "load", "points"]
'''
README = """\
---
license: apache-2.0
library_name: kernels
tags:
- kernels
- kernel
---

# {name}

The op `{op}` of kgen: CuTe DSL kernels, built ahead of time, promoted as {numbers} after they passed its gates.
Evidence, sources and build records are inside, in `{set}` and beside it.

```python
from pathlib import Path

from kernels import get_local_kernel

kernel = get_local_kernel(Path("path/of/this/folder")).load("{dims}", tokens=1)
print(kernel.promoted, kernel.reason)
```

`kernel(values)` takes every tensor of the op by name and writes the outputs in place; `kernel.op.tensors` lists them.
Wherever no promoted kernel may serve, the op's stock version runs and `kernel.reason` says why. Needs a C compiler
(`cc`), `nvidia-cutlass-dsl` and `apache-tvm-ffi` on the GPU host.

| arch | dims | tokens, up to | axes |
|---|---|---|---|
{points}
"""
