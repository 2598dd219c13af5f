"""Candidates of ranked_oproj_allreduce_residual at small dims: built, run in the interpreter on all ranks, judged.

Every call has inputs, state and outputs of its own; weights, mailbox and workspace are the same in all calls.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from support.builds import shared as builder
from support.ranks import raw

from kgen.contract.op import Values
from kgen.contract.ranks import AXIS, Outputs, Symmetric, ranks_of, stacked
from kgen.contract.tensors import DTYPES, Role
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.builder.outcome import Built
from kgen.gates.builder.protocol import Signature
from kgen.gates.ptx import Buffer
from kgen.gates.ptx.ranks import RankResult, Shared, run
from kgen.ops.ranked_oproj_allreduce_residual import RankedOprojAllreduceResidual
from kgen.records import Launch, LaunchArg, Problem

OP = RankedOprojAllreduceResidual()
ARCH = "sm_90a"
FAMILIES = tuple(f.name for f in OP.families)
SCALARS = (*(s.name for s in OP.scalars), "rank")


@dataclass(frozen=True)
class Ranked:
    """A built kernel, its problem, what one rank's launch looks like; the mailbox and workspace that it declares."""

    ptx: str
    launch: Launch
    problem: Problem
    box: Symmetric
    words: int


def built(source: str, ranks: int, tokens: int, cache: Path, variant: str = "delta", dims: str = "nano") -> Ranked:
    problem = OP.problem(dims, tokens, ARCH, {AXIS: str(ranks), "variant": variant})
    sizes, present = OP.sizes(problem), OP.present(problem)
    box = Symmetric("box", "bf16", (ranks, tokens, sizes["hidden"]))
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {t.name: (t.dtype, t.sizes(sizes)) for t in present}
    shapes |= {"box": ("bf16", (box.parities, *box.shape)), "box_peers": ("i64", (ranks,))}
    scalars = [(s.name, s.dtype, s.sample) for s in OP.scalars] + [("rank", "i32", 1)]
    signature = Signature(
        {**sizes, **problem.axes}, tokens, ARCH, tuple((DTYPES[d].cutlass, shape) for d, shape in shapes.values()),
        tuple((dtype, sample) for _, dtype, sample in scalars), (*shapes, *SCALARS), list(shapes).index("out"),
        {d.name: d.cutlass for d in DTYPES.values()},
    )  # fmt: skip
    made = builder().build(source, signature)
    assert isinstance(made, Built), made.message
    ((_, (words,)),) = made.workspaces
    arguments = [Argument(name, dtype, shape) for name, (dtype, shape) in shapes.items()]
    arguments += [Argument(name, dtype, None, sample) for name, dtype, sample in scalars]
    arguments += [Argument("words", "i32", (words,))]
    recorder = Recorder(builder().level, cache)
    (launch,) = recorder.record(made.object, objects.check(made.object, ARCH), arguments)
    return Ranked(made.ptx, launch, problem, box, words)


def _call(made: Ranked, values: Values, rank: int, step: int) -> Launch:
    """A rank's launch number `step`."""
    weights = {t.name for t in OP.present(made.problem) if t.role is Role.WEIGHT}
    own = {t.name for t in OP.present(made.problem)} - weights
    given = iter(SCALARS)
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
    found = {"words": Buffer(np.zeros(4 * made.words, np.uint8), "i32", (made.words,), "workspace", True)}
    sizes = OP.sizes(made.problem)
    for spec in OP.present(made.problem):
        shape = spec.sizes(sizes)
        if spec.role is Role.WEIGHT:
            found[spec.name] = Buffer(raw(steps[0][spec.name][rank]), spec.dtype, shape, "in", True)
            continue
        for step, values in enumerate(steps):
            if spec.role is Role.OUT:
                empty = np.full(2 * int(np.prod(shape)), 0xFF, np.uint8)
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


def execute(made: Ranked, family: str, calls: int, seed: int) -> Ran:
    """All ranks through `calls` calls, and what is wrong with what they left."""
    problem, ranks = made.problem, ranks_of(made.problem)
    drawn = [OP.inputs(problem, family, 100 + step, "cpu") for step in range(calls)]
    weights = {t.name: drawn[0][t.name] for t in OP.present(problem) if t.role is Role.WEIGHT}
    steps = [{**values, **weights} for values in drawn]
    box = Shared("box", "bf16", (made.box.parities, *made.box.shape), raw(made.box.armed()), made.box.sentinel)
    launches = [[_call(made, values, rank, step) for step, values in enumerate(steps)] for rank in range(ranks)]
    result = run(made.ptx, launches, [_buffers(made, steps, rank) for rank in range(ranks)], [box], seed)
    if not result.whole:
        return Ran(result, (), ())
    outputs = tuple(stacked([_outputs(of, made, step) for of in result.outputs]) for step in range(calls))
    wrong = [f"call {n}: {line}" for n, got in enumerate(outputs) for line in judged(problem, steps[n], got)]
    for rank, of in enumerate(result.outputs):
        held = torch.from_numpy(of["box"].copy()).view(torch.bfloat16)
        wrong += made.box.unarmed(held.reshape(made.box.parities, *made.box.shape), calls, rank)
    return Ran(result, outputs, tuple(wrong))


def judged(problem: Problem, values: Values, got: Outputs) -> list[str]:
    """What the op's rules find in one call's outputs of all ranks."""
    stock = OP.stock(problem)(values)
    rounded, true = (OP.reference(problem, values, way) for way in (True, False))
    found = OP.hard_rules(problem, values, got)
    for spec in OP.outputs(problem):
        name = spec.name
        found.append(OP.rule(spec).judge(got[name], stock[name], rounded[name], true[name], 1).complaint)
    return [line for line in found if line]


def _outputs(of_rank: Mapping[str, np.ndarray], made: Ranked, step: int) -> Outputs:
    """What one rank's call wrote."""
    sizes = OP.sizes(made.problem)
    found = {}
    for spec in OP.outputs(made.problem):
        words = torch.from_numpy(of_rank[f"{spec.name}{step}"].copy()).view(torch.bfloat16)
        found[spec.name] = words.reshape(spec.sizes(sizes))
    return found
