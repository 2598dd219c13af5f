"""Ranked candidates at small dims: built by the real compiler, run in the interpreter on all ranks, step after step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.builds import shared as builder

from kgen.contract.ranks import AXIS, Symmetric, stacked
from kgen.contract.tensors import DTYPES
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.builder.outcome import Built
from kgen.gates.builder.protocol import Signature
from kgen.gates.ptx import Buffer, Limits
from kgen.gates.ptx.ranks import RankResult, Shared, run
from kgen.ops.ranked_allreduce_residual import RankedAllreduceResidual
from kgen.records import Launch, LaunchArg

OP = RankedAllreduceResidual()
ARCH = "sm_90a"
FAMILIES = tuple(f.name for f in OP.families)


@dataclass(frozen=True)
class Ranked:
    """A built kernel, what one rank's launch looks like, the mailbox and the words of workspace that it declares."""

    ptx: str
    launch: Launch
    box: Symmetric
    ranks: int
    tokens: int
    words: int

    @property
    def problem(self) -> Any:
        return OP.problem("nano", self.tokens, ARCH, {AXIS: str(self.ranks)})


def built(source: str, ranks: int, tokens: int, cache: Path, dims: str = "nano", slots: int = 0) -> Ranked:
    """`slots`: partials that a parity of the mailbox has room for; as many as ranks where none are named."""
    problem = OP.problem(dims, tokens, ARCH, {AXIS: str(ranks)})
    sizes = OP.sizes(problem)
    box = Symmetric("box", "bf16", (slots or ranks, tokens, sizes["hidden"]))
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {t.name: (t.dtype, t.sizes(sizes)) for t in OP.tensors}
    shapes |= {"box": ("bf16", (box.parities, *box.shape)), "box_peers": ("i64", (ranks,))}
    tensors = tuple((DTYPES[dtype].cutlass, shape) for dtype, shape in shapes.values())
    dtypes = {d.name: d.cutlass for d in DTYPES.values()}
    signature = Signature(
        {**sizes}, tokens, ARCH, tensors, (("i32", 1),), (*shapes, "rank"), list(shapes).index("o"), dtypes
    )
    made = builder().build(source, signature)
    assert isinstance(made, Built), made.message
    arguments = [Argument(n, dtype, shape) for n, (dtype, shape) in shapes.items()]
    arguments += [Argument("rank", "i32", None, 1)]
    ((_, (words,)),) = made.workspaces
    arguments += [Argument("calls", "i32", (words,))]
    recorder = Recorder(builder().level, cache)
    (launch,) = recorder.record(made.object, objects.check(made.object, ARCH), arguments)
    return Ranked(made.ptx, launch, box, ranks, tokens, words)


def launches(kernel: str, names: Sequence[Sequence[str | None]], calls: int) -> list[list[Launch]]:
    """One warp a rank and call. `names[rank]`: its arguments, "{}" for the call's number; None: the rank's number."""
    found = []
    for rank, given in enumerate(names):
        raw = rank.to_bytes(4, "little").hex()
        args = [
            [LaunchArg(n.format(c), 0, "00" * 8) if n else LaunchArg("", 0, raw) for n in given] for c in range(calls)
        ]
        found.append([Launch(kernel, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, {}, tuple(of)) for of in args])
    return found


def calls_of(made: Ranked, steps: int) -> list[list[Launch]]:
    """Launches of every rank, a call each; `part` and `o` are each call's own."""
    found = []
    for rank in range(made.ranks):
        mine = []
        for step in range(steps):
            args = []
            for arg in made.launch.args:
                name = f"{arg.tensor}{step}" if arg.tensor in ("part", "o") else arg.tensor
                raw = arg.raw if arg.tensor else rank.to_bytes(4, "little").hex()
                args.append(replace(arg, tensor=name, raw=raw))
            mine.append(replace(made.launch, args=tuple(args)))
        found.append(mine)
    return found


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def buffers(made: Ranked, values: list[Mapping[str, Any]]) -> list[dict[str, Buffer]]:
    shape = (made.tokens, 256)
    found = []
    for rank in range(made.ranks):
        own = {"prefix": Buffer(raw(values[0]["prefix"][rank]), "bf16", shape, "state", True)}
        own["calls"] = Buffer(np.zeros(4 * made.words, np.uint8), "i32", (made.words,), "workspace", True)
        for step, of in enumerate(values):
            own[f"part{step}"] = Buffer(raw(of["part"][rank]), "bf16", shape, "in", True)
            own[f"o{step}"] = Buffer(np.full(made.tokens * 512, 0xFF, np.uint8), "bf16", shape, "out", False)
        found.append(own)
    return found


@dataclass(frozen=True)
class Ran:
    result: RankResult
    wrong: list[str]  # numbers, ranks that differ, mailboxes that are not armed

    @property
    def complaints(self) -> list[str]:
        return [*self.result.complaints, *self.wrong]


def execute(made: Ranked, family: str, steps: int, seed: int, limits: Limits | None = None) -> Ran:
    """All ranks through `steps` calls on one state, and what is wrong with what they left."""
    problem = made.problem
    values = [OP.inputs(problem, family, 100 + step, "cpu") for step in range(steps)]
    box = Shared("box", "bf16", (made.box.parities, *made.box.shape), raw(made.box.armed()), made.box.sentinel)
    result = run(made.ptx, calls_of(made, steps), buffers(made, values), [box], seed, limits)
    if not result.whole:
        return Ran(result, [])
    state = {"prefix": values[0]["prefix"]}
    wrong = []
    for step, of in enumerate(values):
        want = OP.reference(problem, {**of, **state}, rounded=True)
        state = {"prefix": want["prefix"].to(torch.bfloat16)}
        got = stacked([{"o": _read(r, f"o{step}", made), "prefix": state["prefix"][0]} for r in result.outputs])
        for rank in range(made.ranks):
            if not torch.equal(got["o"][rank].view(torch.int16), want["o"][rank].to(torch.bfloat16).view(torch.int16)):
                wrong.append(f"call {step}: o of rank {rank} is not the sum in rank order")
    for rank in range(made.ranks):
        if not torch.equal(_read(result.outputs[rank], "prefix", made), state["prefix"][rank]):
            wrong.append(f"prefix of rank {rank} after {steps} calls")
        held = torch.from_numpy(result.outputs[rank]["box"].copy()).view(torch.bfloat16)
        wrong += made.box.unarmed(held.reshape(made.box.parities, *made.box.shape), steps, rank)
        counted = result.outputs[rank]["calls"].view(np.int32).tolist()
        if set(counted) != {0, steps}:  # its counters, however many, and else nothing
            wrong.append(f"counters of rank {rank} are {counted}")
    return Ran(result, wrong)


def _read(outputs: Mapping[str, np.ndarray], name: str, made: Ranked) -> torch.Tensor:
    return torch.from_numpy(outputs[name].copy()).view(torch.bfloat16).reshape(made.tokens, 256)
