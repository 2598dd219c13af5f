"""Weights pulled into L2 ahead of the op that reads them: schedules, the kernel that pulls, and where it is started.

    SCHEDULES["gaps"]                     what starts beside which seat, which weights, how many MiB of each
    schedule("core:kda.w_o+post:moe.w_router=6")    one that nobody has named
    stages(name, kind)                    what either means for a kind of layer
    Puller.made(device)                   the kernel on a stream of its own; raises Unavailable (one line)
    Ahead(binder, schedule, ...)          a binder round another that starts the stages beside their seats

A stage starts when the work before its seat is done: the pull runs beside that seat's op. Nothing waits for it and it
writes nothing, so that it can change no output; it can only take bandwidth from an op, or evict what one still needs.
The kernel is PTX text which the driver assembles: it needs neither compiler nor runtime library. Not covered: pulls
over the border of a layer, and what L2 keeps (only times tell).
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kgen.contract.op import Op, Values
from kgen.model.bind import Binder, OpCall
from kgen.model.decoder.config import KDA, MLA
from kgen.records import Problem

cuda: Any = torch.cuda  # parts of it carry no types
Piece = tuple[int, int]  # address and bytes, multiples of 16 both
Pull = Callable[[Sequence[Piece]], None]

NONE = "none"
MIB = 1 << 20
WHOLE = 1 << 10  # MiB: more than any of these weights
STAGES, WEIGHTS, BESIDE, MOST = "+", "/", ":", "="  # of a schedule that is spelled out
SPELLED = f"SEAT{BESIDE}WEIGHT[{MOST}MIB][{WEIGHTS}WEIGHT...][{STAGES}SEAT{BESIDE}...]"
BEHIND = ("post", "shared", "router", "latent", "experts", "tail")  # the seats behind any attention
SEATS: Mapping[str, tuple[str, ...]] = {  # that a stage may start beside, by kind of layer
    KDA: ("pre", "in_proj", "core", "oproj", *BEHIND),
    MLA: ("pre", "in_proj", "append", "query", "attend", "value", "oproj", *BEHIND),
}
ALIGNED = 16
L2_SHARE = 0.5  # of the L2 that one stage may fill: lines from the far half are kept twice, and ops need room
AT_ONCE = 4  # pieces of one launch
CHUNK = 2048  # bytes of one instruction: a warp then has 64 KB on the way
LANES = 32


class Unavailable(Exception):
    """Nothing can be pulled here, or a schedule asks for too much: one line."""


@dataclass(frozen=True)
class Stage:
    """`weights`: names behind `layers.<i>.`, with the MiB that are pulled of each, from its start."""

    beside: str
    weights: tuple[tuple[str, int], ...]


Schedule = Mapping[str, tuple[Stage, ...]]  # kind of layer -> stages


def _gaps(more: tuple[Stage, ...] = ()) -> Schedule:
    """The residual mixes and the recurrent core move next to nothing: meanwhile what is read behind them."""
    router = Stage("post", (("moe.w_router", WHOLE),))
    return {
        KDA: (Stage("pre", (("kda.w_in", 12),)), Stage("core", (("kda.w_o", WHOLE),)), router, *more),
        MLA: (
            Stage("pre", (("mla.w_in", 12),)),
            Stage("append", (("mla.w_qb", WHOLE), ("mla.w_uk", WHOLE), ("mla.w_uv", WHOLE))),
            Stage("query", (("mla.w_o", WHOLE),)),
            router,
            *more,
        ),
    }


# `outputs`: one pull only, the surest. `wide`: also a part of the up-projection, while experts wait for their rows.
SCHEDULES: Mapping[str, Schedule] = {
    NONE: {},
    "outputs": {KDA: (Stage("core", (("kda.w_o", WHOLE),)),), MLA: (Stage("query", (("mla.w_o", WHOLE),)),)},
    "gaps": _gaps(),
    "wide": _gaps((Stage("experts", (("moe.w_up", 24),)),)),
}


def schedules(names: Sequence[str]) -> tuple[str, ...]:
    """The same, each once. Raises ValueError (one line) for an unknown one."""
    for name in names:
        schedule(name)
    return tuple(dict.fromkeys(names))


def schedule(name: str) -> Schedule:
    """One of SCHEDULES, or what a text spells out (SPELLED), for layers of every kind. Raises ValueError (one line)."""
    if (known := SCHEDULES.get(name)) is not None:
        return known
    if BESIDE not in name:
        raise ValueError(f"there is no schedule {name!r}; known: {', '.join(SCHEDULES)}; or {SPELLED}")
    found = tuple(_stage(part, name) for part in name.split(STAGES))
    return dict.fromkeys(SEATS, found)


def _stage(text: str, whole: str) -> Stage:
    seat, _, rest = text.partition(BESIDE)
    if all(seat not in seats for seats in SEATS.values()):
        known = ", ".join(dict.fromkeys(seat for seats in SEATS.values() for seat in seats))
        raise ValueError(f"schedule {whole!r}: no seat is called {seat!r}; seats: {known}")
    weights = []
    for part in rest.split(WEIGHTS):
        weight, sign, most = part.partition(MOST)
        if not weight or (sign and (not most.isdecimal() or int(most) < 1)):
            raise ValueError(f"schedule {whole!r}: {part!r} is no weight; it reads {SPELLED}")
        weights.append((weight, int(most) if sign else WHOLE))
    return Stage(seat, tuple(weights))


def stages(name: str, kind: str) -> tuple[Stage, ...]:
    """Of a schedule, for a kind of layer. Raises Unavailable where one starts beside a seat that the layer lacks, and
    ValueError (one line) for an unknown schedule."""
    found = schedule(name).get(kind, ())
    if wrong := [stage.beside for stage in found if stage.beside not in SEATS[kind]]:
        raise Unavailable(f"a {kind} layer has no seat {wrong[0]!r} to pull beside")
    return found


def pieces(stage: Stage, weights: Mapping[str, torch.Tensor], l2_bytes: int) -> list[Piece]:
    """What a stage pulls. Raises Unavailable for a weight that the layer lacks, and for more than L2 may hold."""
    found: list[Piece] = []
    for name, most in stage.weights:
        if (weight := weights.get(name)) is None:
            raise Unavailable(f"beside {stage.beside} the schedule pulls {name}, which this layer lacks")
        if not weight.is_contiguous() or weight.data_ptr() % ALIGNED:
            raise Unavailable(f"{name} does not lie in one piece")
        found.append((weight.data_ptr(), min(weight.nbytes, most * MIB) // ALIGNED * ALIGNED))
    total = sum(size for _, size in found)
    if l2_bytes and total > l2_bytes * L2_SHARE:
        allowed = f"of {l2_bytes / MIB:.0f} MiB of L2 a stage may fill {L2_SHARE:.0%}"
        raise Unavailable(f"beside {stage.beside} the schedule pulls {total / MIB:.0f} MiB; {allowed}")
    return found


@dataclass(frozen=True)
class Ahead:
    """A binder that starts the stages of a schedule when a seat's call is made, on what `pull` runs on."""

    inner: Binder
    stages: tuple[Stage, ...]
    weights: Mapping[str, torch.Tensor]
    pull: Pull
    l2_bytes: int

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call, word = self.inner.bind(op, problem, seat), seat.split(".")[2]
        mine = [pieces(stage, self.weights, self.l2_bytes) for stage in self.stages if stage.beside == word]
        if not mine:
            return call

        def started(values: Values) -> dict[str, torch.Tensor]:
            for some in mine:
                self.pull(some)
            return call(values)

        return started


def ptx() -> str:
    """The kernel: AT_ONCE pairs of address and bytes; each thread asks for every `threads`-th chunk of each piece."""
    parameters = ", ".join(f".param .u64 a{i}, .param .u64 n{i}" for i in range(AT_ONCE))
    return "\n".join([
        ".version 8.0", ".target sm_90", ".address_size 64",
        f".visible .entry kgen_weight_prefetch({parameters})", "{",
        ".reg .pred %p<2>;", ".reg .b32 %r<8>;", ".reg .b64 %d<8>;",
        "mov.u32 %r0, %tid.x;", "mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %nctaid.x;", "mov.u32 %r3, %ntid.x;",
        "mad.lo.s32 %r4, %r0, %r2, %r1;",  # neighbouring chunks go to different SMs
        f"mul.wide.u32 %d0, %r4, {CHUNK};",
        "mul.lo.s32 %r5, %r2, %r3;", f"mul.wide.u32 %d1, %r5, {CHUNK};",
        *(line for i in range(AT_ONCE) for line in _of_piece(i)),
        "ret;", "}", "",
    ])  # fmt: skip


def _of_piece(i: int) -> list[str]:
    return [
        f"ld.param.u64 %d2, [a{i}];", f"ld.param.u64 %d3, [n{i}];", "mov.u64 %d4, %d0;",
        f"next{i}:", "setp.ge.u64 %p0, %d4, %d3;", f"@%p0 bra done{i};",
        "sub.s64 %d5, %d3, %d4;", f"min.u64 %d5, %d5, {CHUNK};", "cvt.u32.u64 %r6, %d5;",
        "add.s64 %d6, %d2, %d4;",
        "cp.async.bulk.prefetch.L2.global [%d6], %r6;",
        "add.s64 %d4, %d4, %d1;", f"bra.uni next{i};", f"done{i}:",
    ]  # fmt: skip


class Puller:
    """The kernel in this thread's CUDA context, on a stream of its own. One a process is enough."""

    def __init__(self, driver: Any, function: Any, ctas: int) -> None:
        self._driver, self._function, self._ctas = driver, function, ctas
        self._stream = cuda.Stream()

    @classmethod
    def made(cls, device: str) -> "Puller":
        """Raises Unavailable."""
        torch.zeros(1, device=device)  # the context has to be there
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unavailable(f"the CUDA driver cannot be loaded: {error}") from None
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _checked(driver.cuModuleLoadData(ctypes.byref(module), ptx().encode() + b"\0"), "load the prefetch kernel")
        name = b"kgen_weight_prefetch"
        _checked(driver.cuModuleGetFunction(ctypes.byref(function), module, name), "find the prefetch kernel")
        return cls(driver, function, int(torch.cuda.get_device_properties(device).multi_processor_count))

    def __call__(self, some: Sequence[Piece]) -> None:
        """Asks for the pieces once all that was queued on the current stream before is done."""
        self._stream.wait_stream(cuda.current_stream())
        for first in range(0, len(some), AT_ONCE):
            self._launch(some[first : first + AT_ONCE])

    def join(self) -> None:
        """The current stream waits for the pulls: a capture has to end in one stream."""
        cuda.current_stream().wait_stream(self._stream)

    def _launch(self, some: Sequence[Piece]) -> None:
        padded = [*some, *[(0, 0)] * (AT_ONCE - len(some))]
        numbers = [ctypes.c_uint64(number) for piece in padded for number in piece]
        arguments = (ctypes.c_void_p * len(numbers))(*(ctypes.addressof(number) for number in numbers))
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        shape = (self._ctas, 1, 1, LANES, 1, 1, 0)
        _checked(self._driver.cuLaunchKernel(self._function, *shape, stream, arguments, None), "launch a prefetch")


def _checked(code: int, what: str) -> None:
    if code:
        raise Unavailable(f"the CUDA driver cannot {what}: error {code}")
