"""safetensors files in plain Python and torch: tensors by name and a text header, read and written.

The format is eight bytes of header length (little-endian), a JSON header and the raw tensors. The public package's
torch helpers need numpy to write and its byte-level functions differ between versions, so neither is used. Covered:
the dtypes of model weights on a little-endian machine. Not covered: lazy or partial reading, sub-byte dtypes.
"""

import ctypes
import json
import os
import struct
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_NOTES = "__metadata__"
_ALIGN = 8


def write(path: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str]) -> None:
    """Write CPU tensors (bf16, float32 or u8) and text notes, whole or not at all. ValueError on other dtypes."""
    header: dict[str, Any] = {_NOTES: dict(notes)}
    parts, at = [], 0
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype not in _NAMES or tensor.device.type != "cpu":
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}: store bf16, float32 or uint8 from the CPU")
        flat = tensor.contiguous()
        parts.append(ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b"")
        where = [at, at := at + flat.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": where}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(b"".join((struct.pack("<Q", len(text)), text, *parts)))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """CPU tensors by name, and the notes. ValueError if the file is cut short or is none of these."""
    raw = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + length].decode("utf-8"))
        notes = {str(key): str(value) for key, value in header.pop(_NOTES, {}).items()}
        _disjoint(header, len(raw) - 8 - length)
        tensors = {name: _tensor(entry, raw, 8 + length) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError(f"{path} is no whole safetensors file ({type(fault).__name__}): write it again") from None
    return tensors, notes


def _disjoint(header: Mapping[str, Any], size: int) -> None:
    """Tensors that share bytes would take more memory than the file. Raises ValueError, also for what is no size."""
    for entry in header.values():
        numbers = [*entry["shape"], *entry["data_offsets"]]
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            raise ValueError("a size that is none")
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    if any(last > first for (_, last), (first, _) in pairwise(spans)) or (spans and spans[-1][1] > size):
        raise ValueError("tensors share bytes")


def _tensor(entry: Mapping[str, Any], raw: bytes, start: int) -> torch.Tensor:
    dtype, shape, (first, last) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not 0 <= first <= last <= len(raw) - start or last - first != prod(shape) * dtype.itemsize:
        raise ValueError("a tensor is not where the header says")
    if first == last:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw[start + first : start + last]), dtype=dtype).view(shape)
