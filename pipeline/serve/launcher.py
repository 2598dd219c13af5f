"""Loads a linked kernel through tvm-ffi and calls it; counts its launches.

    launcher = Launcher(shared_object, "kgen_entry", runtime)
    launcher(*tensors, *scalars, *workspaces)      # the current torch stream is used; no stream argument
    launcher.counts() -> {"kernel name": launches since load or reset_counts()}

Loading runs no Python of the candidate and unpickles nothing. A launch that is captured into a CUDA graph is counted
once, when it is captured; replays are not seen here. Not covered: argument meaning (the caller passes the op's
documented order); tvm-ffi itself refuses wrong dtypes, shapes, strides, alignments and devices.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgen.serve.runtime import Runtime, find_runtime

UNKNOWN = "(unknown kernel)"  # a launch whose kernel was never asked for by name: attestation refuses it


def _tvm_ffi() -> Any:
    import torch

    if not any(hasattr(torch.Tensor, a) for a in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")):
        # without it tvm_ffi would try to build an extension, which needs a network and minutes
        os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    import tvm_ffi

    return tvm_ffi


class Launcher:
    """One loaded kernel. Raises OSError or RuntimeError (one line) when the library cannot be loaded."""

    def __init__(self, shared_object: Path, function: str, runtime: Runtime | None = None) -> None:
        runtime = runtime or find_runtime()
        tvm_ffi = _tvm_ffi()
        # Loaded by path first, so that the kernel's bare library name finds it; local, so that its symbols (it
        # carries a CUDA runtime and LLVM) stay away from torch's.
        self._runtime = ctypes.CDLL(str(runtime.cute_library), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        self._module = tvm_ffi.load_module(str(shared_object))
        self._call: Callable[..., Any] = self._module[function]
        self._counter = ctypes.CDLL(str(shared_object))
        self._counter.kgen_launch_name.restype = ctypes.c_char_p
        self._counter.kgen_launch_count.restype = ctypes.c_longlong
        self._counter.kgen_launch_unknown.restype = ctypes.c_longlong

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def counts(self) -> dict[str, int]:
        """Launches per kernel name since load or the last reset; kernels not launched are listed with 0."""
        found: dict[str, int] = {}
        for i in range(self._counter.kgen_launch_kernels()):
            name = self._counter.kgen_launch_name(i).decode()
            found[name] = found.get(name, 0) + int(self._counter.kgen_launch_count(i))
        unknown = int(self._counter.kgen_launch_unknown())
        return {**found, UNKNOWN: unknown} if unknown else found

    def reset_counts(self) -> None:
        self._counter.kgen_launch_reset()
