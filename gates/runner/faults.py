"""Deliberate faults of the stock stand-in. Each shows that a check of a gate bites; none is reachable from a candidate.

A fault takes (buffers, outputs and states as the stock op gave them, number of this call) and returns what is written.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from kgen.contract import Role
from kgen.gates.gpu import standin
from kgen.gates.runner.buffers import BufferSet

Outputs = dict[str, torch.Tensor]
Fault = Callable[[BufferSet, Outputs, int], Outputs]


def _first(buffers: BufferSet) -> str:
    return buffers.names(Role.OUT)[0]


def _scaled(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    name = _first(buffers)
    value = got[name].clone()
    value[..., : min(128, value.shape[-1])] *= 1.05
    return {**got, name: value}


def _state_bit(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    name = buffers.names(Role.STATE)[0]
    value = got[name].clone()
    value.view(torch.uint8).view(-1)[0] ^= 1
    return {**got, name: value}


def _past_end(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    buffer = buffers.buffers[_first(buffers)]
    buffer.raw.narrow(0, buffer.raw.numel() - buffer.guard + 2, 1).zero_()
    return got


def _writes_input(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    buffers.buffers[buffers.names(Role.IN, Role.WEIGHT)[0]].data[0] ^= 1
    return got


def _unwritten(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    name = _first(buffers)
    value = got[name].clone()
    value[-1, -1] = buffers.buffers[name].tensor[-1, -1]
    return {**got, name: value}


def _jitter(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    name = _first(buffers)
    value = got[name].clone()
    value.view(torch.uint8).view(-1)[0] ^= call & 1
    return {**got, name: value}


def _mixes_rows(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    name = _first(buffers)
    return {**got, name: got[name] + 0 * got[name].flip(0)}


def _stale(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    """Answers by address: the first result for a buffer is given for ever."""
    known: dict[int, Outputs] = buffers.__dict__.setdefault("_known", {})
    key = buffers.buffers[_first(buffers)].raw.data_ptr()
    return known.setdefault(key, {name: value.clone() for name, value in got.items()})


def _remembers(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    """NaN wherever the workspace has seen this input before: there, an answer could be copied instead of computed."""
    seen, value = buffers.work[0].tensor, buffers.buffers[buffers.names(Role.IN)[0]].tensor
    if torch.equal(seen, value):
        return {name: torch.full_like(output, float("nan")) for name, output in got.items()}
    seen.copy_(value)
    return got


def _writes_weight(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    """Too little to show in an output: the lowest bits of a few weights are set."""
    buffers.buffers[buffers.names(Role.WEIGHT)[-1]].data[-128::2] |= 1
    return got


def _zeros(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    return {name: torch.zeros_like(value) for name, value in got.items()}


def _dies(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    os.kill(os.getpid(), signal.SIGSEGV)
    return got


def _raises(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _hangs(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    time.sleep(3600)
    return got


def _wedges(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    """The stand-in for a device is dead from here on, and this process with it."""
    _device().write_text(standin.DEAD)
    return _dies(buffers, got, call)


def _ecc(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    """As CUDA and the driver report an error of the memory itself."""
    _device().with_suffix(".errors").write_text("1")
    return _says_ecc(buffers, got, call)


def _says_ecc(buffers: BufferSet, got: Outputs, call: int) -> Outputs:
    """Only the words: a launcher can raise what it likes."""
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def _device() -> Path:
    return Path(os.environ[standin.VARIABLE])


FAULTS: Mapping[str, Fault] = {
    "scaled": _scaled,
    "state_bit": _state_bit,
    "past_end": _past_end,
    "writes_input": _writes_input,
    "unwritten": _unwritten,
    "jitter": _jitter,
    "mixes_rows": _mixes_rows,
    "stale": _stale,
    "remembers": _remembers,
    "writes_weight": _writes_weight,
    "zeros": _zeros,
    "dies": _dies,
    "raises": _raises,
    "hangs": _hangs,
    "wedges": _wedges,
    "ecc": _ecc,
    "says_ecc": _says_ecc,
}
