"""Compiles candidate-form snippets with the real compiler for one arch; run as a fresh process.

stdin: {"arch": ..., "dims": {...}, "tokens": n, "folder": ..., "snippets": [source, ...]}; stdout: one JSON line a
snippet: {"error": "" or message, "ptx": length}. The `# args:` comment of a snippet names its tensors and scalars.
"""

import json
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

ARG = re.compile(r"(\w+) (\w+)(?:\[([\w,]*)\])?")


def load(source: str, path: Path) -> ModuleType:
    import importlib.util

    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_one(source: str, path: Path, job: dict[str, Any]) -> int:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    types = {"bf16": cutlass.BFloat16, "f32": cutlass.Float32, "u8": cutlass.Uint8}
    types |= {"i32": cutlass.Int32, "i64": cutlass.Int64}
    module, tokens, arch = load(source, path), job["tokens"], job["arch"]
    dims = {**job["dims"], "tokens": tokens}

    def fake(dtype: str, shape: tuple[int, ...]) -> Any:
        order = tuple(range(len(shape) - 1, -1, -1))
        return make_fake_compact_tensor(types[dtype], shape, stride_order=order, assumed_align=16)

    line = next(text for text in source.splitlines() if text.startswith("# args:"))
    args: list[Any] = []
    for _, dtype, shape in ARG.findall(line.removeprefix("# args:")):
        sizes = tuple(dims[s] if s in dims else int(s) for s in shape.split(",") if s)
        args.append(fake(dtype, sizes) if shape else types[dtype](1))
    spaces = module.workspaces(dims, tokens, arch) if hasattr(module, "workspaces") else []
    args += [fake(dtype, tuple(shape)) for dtype, shape in spaces]
    host = module.build(dims, tokens, arch)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    options = f"--enable-tvm-ffi --keep-ptx --dump-dir {path.parent}"
    compiled = cute.compile(host, *args, stream, options=options)
    return len(compiled.artifacts.PTX)


def main() -> None:
    job = json.load(sys.stdin)
    os.environ["CUTE_DSL_ARCH"] = job["arch"]
    for number, source in enumerate(job["snippets"]):
        try:
            out = {"error": "", "ptx": compile_one(source, Path(job["folder"]) / f"snippet_{number}.py", job)}
        except Exception:  # noqa: BLE001  a process boundary: the test shows whatever went wrong
            out = {"error": traceback.format_exc()[-3000:], "ptx": 0}
        sys.stdout.write(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
