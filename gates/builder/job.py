"""One build, in a fenced fork: load the candidate, compile it for one problem, leave the files in the job folder.

The only place where a candidate's Python runs. What it leaves (`kernel.o`, `.ptx`, `.cubin`, `result.json`) is
untrusted: a candidate shares this process and could forge all of it, which is why the audit reads the object itself.
Every failure of a candidate ends as a code and a message in result.json; a crash or a kill is seen by the server.
"""

import contextlib
import importlib.util
import io
import json
import linecache
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from kgen.gates.builder import defects
from kgen.gates.builder.protocol import ANSI, CUBIN, FUNCTION, MODULE, OBJECT, PTX, RESULT, SOURCE, Layout

OPTIONS = "--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir ."
DSL_CODE = re.compile(r"error\[([A-Z][A-Z0-9_]+)\]")
# text of the message -> code; first hit decides
BACKENDS = (
    ("PTX assembly failed", "compile.ptxas"),
    ("NVVM backend compilation failed", "compile.nvvm"),
    ("std::bad_alloc", "compile.memory"),
    ("out of memory", "compile.memory"),
)
OWN_CODE = re.compile(r"error: (NameError|AttributeError|ImportError) in")
# what Python raised -> code, after the compiler's own words were looked at
EXCEPTIONS: tuple[tuple[type[BaseException], str], ...] = (
    (SyntaxError, "compile.syntax"),
    (NameError, "compile.name"),
    (AttributeError, "compile.name"),
    (ImportError, "compile.name"),
    (MemoryError, "compile.memory"),
    (RecursionError, "compile.recursion"),
)
Buffer = tuple[str, str, list[int], int, int | None]  # symmetric: name, dtype, shape of a parity, parities, sentinel
PITCH_BYTES = 16  # a free stride is a multiple of it
CALL_CODES = ("CALL_", "ARG_BIND_")  # the compiler complains about the arguments that it was called with


class ContractError(Exception):
    """The candidate does not keep the contract of docs/candidate.md."""


class OwnError(Exception):
    """Wraps what build(), workspaces(), design() or the module itself raised: the compiler was not involved."""


def run(request: dict[str, Any]) -> int:
    """Build and report. Returns the exit status: 0 built, 1 the candidate failed."""
    started = time.monotonic()
    try:
        result = _build(request)
    except BaseException as error:  # noqa: BLE001  process boundary: a candidate may raise anything, SystemExit too
        code, message = classify(error)
        if code.removeprefix("compile.dsl.").startswith(CALL_CODES):
            message += f"\n  the host function is called with: {', '.join(_names(request))}"
        result = {"ok": False, "code": code, "message": _without_paths(message, request["folder"])}
    result["seconds"] = time.monotonic() - started
    Path(RESULT).write_text(json.dumps(result), encoding="utf-8")
    return 0 if result["ok"] else 1


def _build(request: dict[str, Any]) -> dict[str, Any]:
    import cutlass.cute as cute

    signature, defect = request["signature"], request["defect"]
    source = Path(SOURCE).read_text(encoding="utf-8")
    if defect == "drop_last_k":
        source = defects.drop_last_k(source)
    with _candidates_own():
        module = load(MODULE, source)
        point = (dict(signature["dims"]), signature["tokens"], signature["arch"])
        host = _function(module, "build")(*point)
        workspaces = _workspaces(module, point, signature["dtypes"])
        symmetric = _symmetric(module, point, signature["dtypes"]) if signature["ranks"] else []
        design = str(getattr(module, "design", lambda *_: "")(*point))[:200]
    if not callable(host):
        raise ContractError(f"build() returned {type(host).__name__}, not a @cute.jit host function")
    arguments = _arguments(signature, workspaces, symmetric)
    if defect == "tile_scale":
        counts = len(signature["tensors"]), len(signature["scalars"]), len(workspaces)
        out = signature["first_out"]
        host = load("defect", defects.scaled(*counts, out, signature["tensors"][out][1])).wrap(host)
    compiled = cute.compile(host, *arguments, options=OPTIONS)
    ptx, cubin = compiled.artifacts.PTX, compiled.artifacts.CUBIN
    if not isinstance(cubin, bytes):
        raise ContractError("the host function launches no kernel")
    compiled.export_to_c(OBJECT, function_name=FUNCTION)
    Path(PTX).write_text(ptx, encoding="utf-8")
    Path(CUBIN).write_bytes(cubin)
    return {"ok": True, "workspaces": workspaces, "symmetric": symmetric, "design": design}


@contextlib.contextmanager
def _candidates_own() -> Iterator[None]:
    """Marks what the candidate's own Python raises, so that it is not taken for a complaint of the compiler."""
    try:
        yield
    except ContractError:
        raise
    except BaseException as error:
        raise OwnError from error


def _arguments(
    signature: dict[str, Any], workspaces: list[tuple[str, list[int]]], symmetric: list[Buffer]
) -> list[Any]:
    """Fake tensors, a rank's own copy and the addresses of each symmetric buffer, scalars, fake workspaces and the
    stream, in call order."""
    import cutlass
    from cutlass.cute.runtime import make_fake_stream

    symbols: dict[str, Any] = {}
    layouts = signature["layouts"]
    tensors = [_fake(d, s, layouts.get(str(i)), symbols) for i, (d, s) in enumerate(signature["tensors"])]
    for _, dtype, shape, parities, _ in symmetric:
        tensors.append(_fake(signature["dtypes"][dtype], [parities, *shape], None, symbols))
        tensors.append(_fake(signature["dtypes"]["i64"], [signature["ranks"]], None, symbols))
    scalars = [{"i32": cutlass.Int32, "f32": cutlass.Float32}[kind](value) for kind, value in signature["scalars"]]
    spaces = [_fake(signature["dtypes"][dtype], shape, None, symbols) for dtype, shape in workspaces]
    return [*tensors, *scalars, *spaces, make_fake_stream(use_tvm_ffi_env_stream=True)]


def _names(request: dict[str, Any]) -> list[str]:
    return [*request["signature"]["names"], "the declared workspaces", "stream"]


def _without_paths(message: str, folder: str) -> str:
    """The message without paths of this machine: the same failure reads the same everywhere."""
    return message.replace(f"{folder}/", "").replace(str(Path(__file__).parent) + "/", "builder/")


def load(name: str, source: str) -> ModuleType:
    """Execute `source` as module `name`; the compiler finds its text through linecache."""
    path = f"{name}.py"
    lines = io.StringIO(source).readlines()  # ended by \n alone, as Python's own parser has them
    linecache.cache[path] = (len(source), None, lines, path)
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise ContractError(f"the file defines no function {name}(dims, tokens, arch)")
    return found  # type: ignore[no-any-return]


def _workspaces(module: ModuleType, point: tuple[Any, ...], dtypes: dict[str, str]) -> list[tuple[str, list[int]]]:
    """What workspaces() declares, checked: a list of (dtype, shape)."""
    declared = _function(module, "workspaces")(*point) if hasattr(module, "workspaces") else []
    if not isinstance(declared, list | tuple):
        raise ContractError(f"workspaces() returned {type(declared).__name__}, not a list of (dtype, shape)")
    out: list[tuple[str, list[int]]] = []
    for entry in declared:
        if not (isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], list | tuple)):
            raise ContractError(f"workspaces(): {entry!r} is not (dtype, shape)")
        dtype, shape = entry
        if dtype not in dtypes:
            raise ContractError(f"workspaces(): unknown dtype {dtype!r}; known: {', '.join(dtypes)}")
        if not shape or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
            raise ContractError(f"workspaces(): shape {shape!r} is not a tuple of positive integers")
        out.append((dtype, list(shape)))
    return out


def _symmetric(module: ModuleType, point: tuple[Any, ...], dtypes: dict[str, str]) -> list[Buffer]:
    """What symmetric() declares: a list of (name, dtype, shape, parities, sentinel). The judge looks at the values."""
    declared = _function(module, "symmetric")(*point) if hasattr(module, "symmetric") else []
    if not isinstance(declared, list | tuple):
        raise ContractError(f"symmetric() returned {type(declared).__name__}, not a list of buffers")
    out: list[Buffer] = []
    for entry in declared:
        if not (isinstance(entry, list | tuple) and len(entry) == 5 and isinstance(entry[2], list | tuple)):
            raise ContractError(f"symmetric(): {entry!r} is not (name, dtype, shape, parities, sentinel)")
        name, dtype, shape, parities, sentinel = entry
        if dtype not in dtypes:
            raise ContractError(f"symmetric(): unknown dtype {dtype!r}; known: {', '.join(dtypes)}")
        if not shape or not all(type(n) is int and n > 0 for n in (*shape, parities)):
            raise ContractError(f"symmetric(): {entry!r} has sizes that are no positive integers")
        out.append((str(name), dtype, list(shape), parities, sentinel))
    return out


def _fake(dtype: str, shape: list[int], layout: Layout | None, symbols: dict[str, Any]) -> Any:
    """A row-major tensor that exists at trace time only; free sizes and a free first stride are symbols."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_tensor

    kind = getattr(cutlass, dtype)
    free = layout["free"] if layout else {}
    sizes = [symbols.setdefault(free[str(i)], cute.sym_int64()) if str(i) in free else n for i, n in enumerate(shape)]
    if not (layout and layout["pitched"]):
        order = tuple(range(len(shape) - 1, -1, -1))
        return make_fake_compact_tensor(kind, tuple(sizes), stride_order=order, assumed_align=16)
    inner = [math.prod(shape[i + 1 :]) for i in range(1, len(shape))]
    pitch = cute.sym_int64(divisibility=max(1, PITCH_BYTES * 8 // kind.width))
    return make_fake_tensor(kind, tuple(sizes), stride=(pitch, *inner), assumed_align=16)


def classify(error: BaseException) -> tuple[str, str]:
    """(stable code, message for the proposer) of what a candidate raised."""
    if isinstance(error, OwnError) and error.__cause__ is not None:
        own = error.__cause__
        code = next((code for kind, code in EXCEPTIONS if isinstance(own, kind)), "compile.build")
        return code, _message(own)
    if isinstance(error, ContractError | defects.DefectError):
        return ("compile.contract" if isinstance(error, ContractError) else "compile.defect"), str(error)
    message = _message(error)
    for words, code in BACKENDS:
        if words in message:
            return code, message
    if OWN_CODE.search(message):
        return "compile.name", message
    if hit := DSL_CODE.search(message):
        return f"compile.dsl.{hit.group(1)}", message
    for kind, code in EXCEPTIONS:
        if isinstance(error, kind):
            return code, message
    return "compile.dsl", message


def _message(error: BaseException) -> str:
    """The exception's own words, and the candidate's frames that led there; no frames of the compiler."""
    frames: list[traceback.FrameSummary] = []
    with contextlib.suppress(Exception):  # a candidate's exception may be broken on purpose
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == SOURCE]
    where = [f"  {SOURCE}:{f.lineno} in {f.name}: {(f.line or '').strip()}" for f in frames[-6:]]
    words = "".join(traceback.format_exception_only(error)).strip()
    return ANSI.sub("", "\n".join([*where, words]))
