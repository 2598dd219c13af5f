"""Runs the launches of one call: PTX, launches and arrays in; new contents and findings out.

    result = run(ptx, record.launches, {"m": Buffer.of(m, "bf16", "in"), ...}, seed=1)
    result.outputs["y"]      # bytes of every tensor that a kernel may write
    result.findings          # () for a kernel without fault
    result.skipped           # names an instruction that is not known; the outputs then mean nothing

Launches run one after another, also those that may overlap on the hardware: what such a launch touches before
griddepcontrol.wait is a finding. Not covered: several streams, and launches from the device.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx import memory
from kgen.gates.ptx.budget import Before, Limits, Run, StoppedError, UnsupportedError
from kgen.gates.ptx.decode import plan
from kgen.gates.ptx.findings import Finding, Log
from kgen.gates.ptx.geometry import Geometry
from kgen.gates.ptx.machine import Wave
from kgen.gates.ptx.matrix import tensormap
from kgen.gates.ptx.matrix.tma import TensorMap
from kgen.gates.ptx.memory import Space
from kgen.gates.ptx.parse import parse
from kgen.gates.ptx.shadow import Region
from kgen.gates.ptx.state import Plan
from kgen.gates.ptx.syntax import Entry, Module
from kgen.gates.ptx.tokens import PtxError
from kgen.records import Launch

Array = npt.NDArray[Any]
# (launch, argument) -> what the descriptor there describes, where its recorded bytes do not say
Maps = Mapping[tuple[int, int], TensorMap]
ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "u8": 1, "e4m3": 1, "e5m2": 1}
ROLES = ("in", "weight", "out", "state", "workspace")


@dataclass(frozen=True)
class Buffer:
    """A named array in device memory. `data`: its bytes (uint8, flat), which the run does not write.

    `initialised`: whether reading it before it is written is right; outputs are not. `strides`: elements between
    neighbours in each dimension, () where it is compact.
    """

    data: Array
    dtype: str
    shape: tuple[int, ...]
    role: str
    initialised: bool
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES or self.role not in ROLES:
            raise PtxError(0, f"a buffer of dtype {self.dtype!r} and role {self.role!r} is not known")
        if self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise PtxError(0, "a buffer's data are flat bytes (uint8)")

    @classmethod
    def of(cls, array: Array, dtype: str, role: str, strides: tuple[int, ...] = ()) -> "Buffer":
        """Of a C-contiguous array of any element type of the dtype's size."""
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return cls(flat, dtype, array.shape, role, role != "out", strides)


@dataclass(frozen=True)
class Result:
    """`outputs`: bytes by name of every buffer that may be written. `warps`, `lanes`: instructions executed by warps
    and by threads. `skipped`: the instruction that is not known. `stopped`: the limit that was used up, or where the
    run cannot go on. Both are "" for a run to the end.
    """

    outputs: Mapping[str, Array]
    findings: tuple[Finding, ...]
    warps: int
    lanes: int
    seconds: float
    skipped: str = ""
    stopped: str = ""

    @property
    def whole(self) -> bool:
        """Whether all launches ran to their end."""
        return not (self.skipped or self.stopped)


@dataclass
class _State:
    run: Run
    before: Before = field(default_factory=Before)
    plans: dict[str, Plan] = field(default_factory=dict)


def run(
    ptx: str,
    launches: Sequence[Launch],
    buffers: Mapping[str, Buffer],
    seed: int = 0,
    maps: Maps | None = None,
    limits: Limits | None = None,
) -> Result:
    """Raises PtxError (one line) for malformed PTX, or launches that do not fit it.

    `seed` 0: all warps in step; another one: an order of warps and CTAs of its own.
    """
    started = time.monotonic()
    module = parse(ptx)
    space = Space()
    for name, b in buffers.items():
        space.add(memory.tensor(name, b.data, b.role, b.shape, ITEM_BYTES[b.dtype], b.initialised, b.strides))
    state = _State(Run(space, Log(), limits or Limits(), seed))
    skipped = stopped = ""
    try:
        with np.errstate(all="ignore"):
            for number, launch in enumerate(launches):
                _launch(state, module, launch, number, maps or {})
    except UnsupportedError as error:
        skipped = str(error)
    except StoppedError as error:
        stopped = str(error)
    except MemoryError:
        stopped = "the machine's memory is used up"
    outputs = {t.name: t.data[: t.nbytes] for t in space.tensors if t.writable and t.name in buffers}
    made = state.run
    return Result(outputs, made.log.all(), made.warps, made.lanes, time.monotonic() - started, skipped, stopped)


def _launch(state: _State, module: Module, launch: Launch, number: int, maps: Maps) -> None:
    entry = module.entries.get(launch.kernel)
    if entry is None:
        raise PtxError(0, f"launch {number}: the PTX has no entry {launch.kernel[:80]}")
    if entry.name not in state.plans:
        state.plans[entry.name] = plan(module, entry, state.run.space)
    made = state.plans[entry.name]
    geometry = Geometry(launch.grid, launch.block, launch.cluster, made.shared + launch.dynamic_smem)
    params, described = parameters(state.run.space, entry, launch, {a: m for (n, a), m in maps.items() if n == number})
    if not launch.attributes.get("pdl"):
        state.before = Before()
    regions: dict[str, Region] = {}
    rng = np.random.default_rng(state.run.seed) if state.run.seed else None
    waited = False
    for ctas in geometry.waves(made.whole_grid or bool(launch.attributes.get("cooperative")), rng):
        machine = Wave(state.run, made, geometry, ctas, params, regions, state.before, described)
        whole = machine.start()
        waited = waited or bool(machine.waited.any())
        if not whole:
            raise StoppedError(f"launch {number} ({launch.kernel[:60]}) cannot go on: see the findings")
    state.before = _after(state, regions, bool(launch.attributes.get("pdl")) and not waited)


def parameters(
    space: Space, entry: Entry, launch: Launch, maps: Mapping[int, TensorMap]
) -> tuple[bytes, dict[int, TensorMap]]:
    """The parameters' bytes, with addresses of the run's own, and the described tensors by offset."""
    if len(launch.args) != len(entry.params):
        raise PtxError(0, f"{entry.name[:60]} takes {len(entry.params)} parameters, the launch has {len(launch.args)}")
    out, described = bytearray(), {}
    for number, (param, arg) in enumerate(zip(entry.params, launch.args, strict=True)):
        out += bytes(-len(out) % param.align)
        try:
            raw = bytearray(bytes.fromhex(arg.raw)[: param.size])
        except ValueError as error:
            raise PtxError(0, f"argument {number} of {entry.name[:60]}: {error}") from error
        raw += bytes(param.size - len(raw))
        if arg.tensor:
            found = space.named(arg.tensor)
            if found is None:
                raise PtxError(
                    0, f"argument {number} of {entry.name[:60]} points to {arg.tensor!r}, which is no buffer"
                )
            if param.size >= 8:
                raw[:8] = (found.base + arg.offset).to_bytes(8, "little")
            if (given := maps.get(number) or _described(bytes(raw))) is not None:
                described[len(out)] = replace(given, base=found.base + arg.offset)
        out += raw
    return bytes(out), described


def _described(raw: bytes) -> TensorMap | None:
    """The tensor map in an argument; None where it holds none, or one that cannot be read."""
    if len(raw) != tensormap.BYTES:
        return None
    try:
        return tensormap.decode(raw)
    except ValueError:
        return None


def _after(state: _State, regions: Mapping[str, Region], ran_on: bool) -> Before:
    """What the next launch must wait for. `ran_on`: this launch may have ended before the ones before it."""
    touched: dict[str, Array] = {}
    for tensor in state.run.space.tensors:
        region = regions.get(tensor.name)
        if region is None:
            continue
        granule = region.granule
        written = region.writes != 0
        if tensor.init is not None and region.written:
            tensor.init |= np.repeat(written, granule)
        touched[tensor.name] = np.repeat(written | (region.reads != 0), granule)
    beyond = dict(state.before.beyond)
    if ran_on:
        for name, before in state.before.needs_wait.items():
            beyond[name] = beyond[name] | before if name in beyond else before
    return Before(touched, beyond if ran_on else {})
