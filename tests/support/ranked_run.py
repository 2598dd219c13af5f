"""Candidates of any ranked op at small dims: built, run in the interpreter on all ranks, judged by the op's own rules.

Every call has inputs, states and outputs of its own; weights, symmetric buffers and workspaces are the same in all.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from support.builds import shared as builder

from kgen.contract.op import Values
from kgen.contract.ranks import AXIS, Outputs, RankedOp, Symmetric, ranks_of, stacked
from kgen.contract.tensors import DTYPES, Role
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Recorder
from kgen.gates.builder.outcome import Built
from kgen.gates.ptx import Buffer
from kgen.gates.ptx.ranks import RankResult, Shared, run
from kgen.gates.ranks.job import buffer
from kgen.gates.signature import arguments, signature
from kgen.records import Launch, LaunchArg, Problem, SymmetricBuffer

ARCH = "sm_90a"
SEEDS = (0, 1)  # orders that must show a mistake: all in step, and one drawn order


@dataclass(frozen=True)
class Ranked:
    """A built kernel, its problem, what one rank's launch looks like, and the memory that it declares."""

    op: RankedOp
    ptx: str
    launch: Launch
    problem: Problem
    boxes: tuple[Symmetric, ...]
    workspaces: Mapping[str, tuple[str, tuple[int, ...]]]

    @property
    def ranks(self) -> int:
        return ranks_of(self.problem)


def built(op: RankedOp, source: str, ranks: int, tokens: int, cache: Path, dims: str = "nano", **axes: str) -> Ranked:
    problem = op.problem(dims, tokens, ARCH, {AXIS: str(ranks), **axes})
    made = builder().build(source, signature(op, problem))
    assert isinstance(made, Built), made.message
    declared = tuple(SymmetricBuffer(*entry) for entry in made.symmetric)
    call = arguments(op, problem, made.workspaces, declared)
    recorder = Recorder(builder().level, cache)
    (launch,) = recorder.record(made.object, objects.check(made.object, ARCH), call)
    names = [a.name for a in call[-len(made.workspaces) :]]
    spaces = dict(zip(names, made.workspaces, strict=True))
    return Ranked(op, made.ptx, launch, problem, tuple(buffer(d) for d in declared), spaces)


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def _typed(held: np.ndarray, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(held.copy()).view(getattr(torch, DTYPES[dtype].torch)).reshape(shape)


def _call(made: Ranked, values: Values, rank: int, step: int) -> Launch:
    """A rank's launch number `step`."""
    own = {t.name for t in made.op.present(made.problem) if t.role is not Role.WEIGHT}
    given = iter((*(s.name for s in made.op.scalars), "rank"))
    args = []
    for arg in made.launch.args:
        if arg.tensor:
            args.append(replace(arg, tensor=f"{arg.tensor}{step}" if arg.tensor in own else arg.tensor))
            continue
        name = next(given)
        value = rank if name == "rank" else values[name]
        args.append(LaunchArg("", 0, struct.pack("<f" if isinstance(value, float) else "<i", value).hex()))
    return replace(made.launch, args=tuple(args))


def _buffers(made: Ranked, steps: Sequence[Values], rank: int) -> dict[str, Buffer]:
    found = {}
    for name, (dtype, shape) in made.workspaces.items():
        size = int(np.prod(shape)) * DTYPES[dtype].bytes
        found[name] = Buffer(np.zeros(size, np.uint8), dtype, shape, "workspace", True)
    sizes = made.op.sizes(made.problem)
    for spec in made.op.present(made.problem):
        shape = spec.sizes(sizes)
        if spec.role is Role.WEIGHT:
            found[spec.name] = Buffer(raw(steps[0][spec.name][rank]), spec.dtype, shape, "in", True)
            continue
        for step, values in enumerate(steps):
            if spec.role is Role.OUT:
                empty = np.full(DTYPES[spec.dtype].bytes * int(np.prod(shape)), 0xFF, np.uint8)
                found[f"{spec.name}{step}"] = Buffer(empty, spec.dtype, shape, "out", False)
            else:
                role = "state" if spec.role is Role.STATE else "in"
                found[f"{spec.name}{step}"] = Buffer(raw(values[spec.name][rank]), spec.dtype, shape, role, True)
    return found


@dataclass(frozen=True)
class Ran:
    """`outputs[step]`: of all ranks. `wrong`: numbers, ranks that differ, mailboxes that are not armed."""

    result: RankResult
    outputs: tuple[Outputs, ...]
    wrong: tuple[str, ...]

    @property
    def complaints(self) -> list[str]:
        return [*self.result.complaints, *self.wrong]


def drawn(made: Ranked, family: str, calls: int) -> list[Values]:
    """Inputs of all ranks, a call each, with the weights of the first."""
    op, problem = made.op, made.problem
    each = [op.inputs(problem, family, 100 + step, "cpu") for step in range(calls)]
    weights = {t.name: each[0][t.name] for t in op.present(problem) if t.role is Role.WEIGHT}
    return [{**values, **weights} for values in each]


def execute(made: Ranked, family: str, calls: int, seed: int) -> Ran:
    """All ranks through `calls` calls, and what is wrong with what they left."""
    steps, ranks = drawn(made, family, calls), range(made.ranks)
    launches = [[_call(made, values, rank, step) for step, values in enumerate(steps)] for rank in ranks]
    shared = [Shared(b.name, b.dtype, (b.parities, *b.shape), raw(b.armed()), b.sentinel) for b in made.boxes]
    result = run(made.ptx, launches, [_buffers(made, steps, rank) for rank in ranks], shared, seed)
    if not result.whole:
        return Ran(result, (), ())
    outputs = tuple(stacked([_outputs(of, made, step) for of in result.outputs]) for step in range(calls))
    wrong = [f"call {n}: {line}" for n, got in enumerate(outputs) for line in judged(made, steps[n], got)]
    for rank, of in enumerate(result.outputs):
        for box in made.boxes:
            wrong += box.unarmed(_typed(of[box.name], box.dtype, (box.parities, *box.shape)), calls, rank)
    return Ran(result, outputs, tuple(wrong))


def refused(made: Ranked, family: str, found: tuple[str, ...], calls: int = 4) -> list[str]:
    """Complaints about a mistake, under one order after the other, up to one that holds a word of `found`.

    Raises AssertionError where no order shows the mistake.
    """
    complaints: list[str] = []
    for seed in SEEDS:
        complaints += execute(made, family, calls, seed).complaints
        if any(word in line for line in complaints for word in found):
            return complaints
    raise AssertionError(complaints)


def judged(made: Ranked, values: Values, got: Outputs) -> list[str]:
    """What the op's rules find in one call's outputs of all ranks."""
    op, problem = made.op, made.problem
    stock = op.stock(problem)(values)
    rounded, true = (op.reference(problem, values, way) for way in (True, False))
    found = op.hard_rules(problem, values, got)
    for spec in op.outputs(problem):
        name = spec.name
        found.append(op.rule(spec).judge(got[name], stock[name], rounded[name], true[name], 1).complaint)
    return [line for line in found if line]


def _outputs(of_rank: Mapping[str, np.ndarray], made: Ranked, step: int) -> Outputs:
    """What one rank's call wrote."""
    sizes = made.op.sizes(made.problem)
    specs = made.op.outputs(made.problem)
    return {s.name: _typed(of_rank[f"{s.name}{step}"], s.dtype, s.sizes(sizes)) for s in specs}
