"""Runner side of unit-numeric for ops of several ranks without GPUs: their PTX on all ranks in the interpreter.

A job: {"items": [{"spec": LoadSpec, "checks": [Interleaving, ...]}], "cache": path, "seconds": for all of them}, and a
record a check: {"id", "outputs": [{"at": {"call": n}, "tensors": {name: reference}}], "findings": [[code, text]]}, with
tensors of all ranks. Looked at here: what the interpreter finds, mailboxes armed again, runs that differ, what is not
written, rows that depend on padding. Needs NumPy, which a kit does not carry. Not covered: kernels of several launches.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kgen.contract import DTYPES, Op, Role, Values
from kgen.contract.ranks import Symmetric, of_rank, ranks_of, stacked
from kgen.contract.rules import same_bits
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.ptx import Buffer, Limits
from kgen.gates.ptx.ranks import RankResult, Shared
from kgen.gates.ptx.ranks import run as interpret
from kgen.gates.ranks.interleaving import Interleaving, cut, drawn
from kgen.gates.ranks.job import buffer
from kgen.gates.rows import pad
from kgen.gates.runner.buffers import POISON, SECOND_POISON
from kgen.gates.runner.interpreted import CODES
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.gates.sandbox import choose
from kgen.gates.signature import RANK, arguments
from kgen.ops import REGISTRY
from kgen.records import Launch, from_json

SHOWN = 3  # waits of one deadlock: the others wait for the same
Tensors = dict[str, torch.Tensor]
Coded = tuple[str, str]


class Ended(Exception):
    """No further check is made: `code` is "unsupported" or "budget", or "" where the candidate's faults are known."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def run(job: Mapping[str, Any], out: Out) -> dict[str, Any]:
    until = time.monotonic() + float(job["seconds"])
    for item in job["items"]:
        spec = from_json(LoadSpec, item["spec"])
        out.at(f"load {spec.problem.key}")
        bench = Bench(REGISTRY.get(spec.problem.op), spec, Path(job["cache"]), until)
        for check in (from_json(Interleaving, value) for value in item["checks"]):
            try:
                _check(bench, check, out)
            except Ended as ended:
                return {"ended": [ended.code, f"{spec.problem.key}: {ended}"]}
    return {}


@dataclass
class Bench:
    """One artefact on all ranks."""

    op: Op
    spec: LoadSpec
    cache: Path
    until: float
    recorded: dict[tuple[Argument, ...], Launch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = Path(self.spec.ptx).read_text(encoding="utf-8")
        self.boxes: tuple[Symmetric, ...] = tuple(buffer(each) for each in self.spec.symmetric)
        self.ranks = ranks_of(self.spec.problem)

    def launch(self, values: Values, rank: int) -> Launch:
        """Of a call with these scalars on this rank, as the object makes it."""
        spec = self.spec
        scalars = {RANK: rank, **{s.name: values[s.name] for s in self.op.scalars}}
        sampled = arguments(self.op, spec.problem, spec.workspaces, spec.symmetric)
        given = tuple(replace(a, value=float(scalars[a.name])) if a.shape is None else a for a in sampled)
        if given not in self.recorded:
            data = Path(spec.object).read_bytes()
            recorder = Recorder(choose(), self.cache.parent / "recorder")
            launches = recorder.record(data, objects.check(data, spec.problem.arch), given)
            if len(launches) != 1:
                raise Ended("unsupported", f"several ranks are interpreted with one launch a call, not {len(launches)}")
            self.recorded[given] = launches[0]
        return self.recorded[given]

    def name(self, tensor: str, call: int, one_state: bool) -> str:
        """What a call's tensor is called: those of its own have the call's number."""
        shared = (Role.WEIGHT, Role.STATE) if one_state else (Role.WEIGHT,)
        own = {t.name for t in self.op.present(self.spec.problem) if t.role not in shared}
        return f"{tensor}.{call}" if tensor in own else tensor


def _check(bench: Bench, check: Interleaving, out: Out) -> None:
    """All orders of one family. Raises Ended when nothing more can be said of the artefact."""
    problem, key = bench.spec.problem, bench.spec.problem.key
    first: list[Tensors] = []
    findings: list[Coded] = []
    said: set[Coded] = set()
    for number, order in enumerate(check.orders):
        out.at(f"{key} inputs of {check.what}")
        values = drawn(bench.op, problem, check)
        if check.true_tokens:
            _pad(bench, values, check.true_tokens, garbage=number > 0)
        poison = SECOND_POISON if number % 2 else POISON
        with out.candidate(f"{key} {check.what} order {order}", "cpu"):
            result = _run(bench, check, values, order, poison)
        fresh = [each for each in _found(result) if each not in said]
        said |= {*fresh}
        findings += [(code, f"{check.what}, order {order}: {text}") for code, text in fresh]
        if not result.whole:
            out.record({"id": check.id, "outputs": [], "findings": findings})
            code = "unsupported" if result.skipped else "" if findings else "budget"
            raise Ended(code, result.skipped or result.stopped)
        got = [_written(bench, check, result, call) for call in range(check.calls)]
        findings += [("mailbox", f"{check.what}, order {order}: {line}") for line in _unarmed(bench, check, result)]
        findings += _apart(check, order, first, got)
        first = first or got
    kept = [{"at": {"call": n}, "tensors": {k: out.tensor(t) for k, t in of.items()}} for n, of in enumerate(first)]
    out.record({"id": check.id, "outputs": kept, "findings": findings})


def _pad(bench: Bench, steps: Sequence[Values], count: int, garbage: bool) -> None:
    for values in steps:
        for rank in range(bench.ranks):
            pad(bench.op, bench.spec.problem, of_rank(values, rank), count, garbage)


def _run(bench: Bench, check: Interleaving, steps: Sequence[Values], order: int, poison: int) -> RankResult:
    ranks = range(bench.ranks)
    calls = [[_launch(bench, check, values, rank, n) for n, values in enumerate(steps)] for rank in ranks]
    held = [_buffers(bench, check, steps, rank, poison) for rank in ranks]
    shared = [Shared(b.name, b.dtype, (b.parities, *b.shape), _raw(b.armed()), b.sentinel) for b in bench.boxes]
    limits = Limits(seconds=max(1.0, bench.until - time.monotonic()))
    return interpret(bench.text, calls, held, shared, order, limits)


def _launch(bench: Bench, check: Interleaving, values: Values, rank: int, call: int) -> Launch:
    made = bench.launch(values, rank)
    args = tuple(replace(a, tensor=bench.name(a.tensor, call, check.one_state)) if a.tensor else a for a in made.args)
    return replace(made, args=args)


def _buffers(bench: Bench, check: Interleaving, steps: Sequence[Values], rank: int, poison: int) -> dict[str, Buffer]:
    """A rank's own memory: what calls share once, everything else once a call."""
    found = {}
    for number, (dtype, shape) in enumerate(bench.spec.workspaces):
        size = int(np.prod(shape)) * DTYPES[dtype].bytes
        found[f"workspace{number}"] = Buffer(np.zeros(size, np.uint8), dtype, tuple(shape), "workspace", True)
    for call, values in enumerate(steps):
        mine = of_rank(values, rank)
        for spec in bench.op.present(bench.spec.problem):
            name = bench.name(spec.name, call, check.one_state)
            if name in found:
                continue
            shape, out = spec.sizes(bench.op.sizes(bench.spec.problem)), spec.role is Role.OUT
            size = int(np.prod(shape)) * DTYPES[spec.dtype].bytes
            value = mine.get(spec.name)
            data = np.full(size, poison, np.uint8) if out or not isinstance(value, torch.Tensor) else _raw(value)
            found[name] = Buffer(data, spec.dtype, shape, spec.role.value, not out)
    return found


def _raw(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    data: npt.NDArray[np.uint8] = tensor.contiguous().view(torch.uint8).numpy().reshape(-1).copy()
    return data


def _typed(data: npt.NDArray[Any], dtype: str, shape: Sequence[int]) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, DTYPES[dtype].torch)
    return torch.from_numpy(data.copy()).view(kind).reshape(*shape)


def _found(result: RankResult) -> list[Coded]:
    """What the interpreter has to say against the kernel, with the gate's codes."""
    found = [(CODES[f.kind], str(f)) for f in result.findings]
    found += [("mailbox", str(fault)) for fault in result.faults]
    return found + [("wait", str(wait)) for wait in result.waits[:SHOWN]]


def _written(bench: Bench, check: Interleaving, result: RankResult, call: int) -> Tensors:
    """Outputs and states of one call on all ranks; of rows that count, where the bin is padded."""
    op, problem = bench.op, bench.spec.problem
    sizes, each = op.sizes(problem), []
    for of in result.outputs:
        names = {t.name: bench.name(t.name, call, check.one_state) for t in op.outputs(problem)}
        each.append({t.name: _typed(of[names[t.name]], t.dtype, t.sizes(sizes)) for t in op.outputs(problem)})
    whole: Values = {**stacked(each)}
    return {k: v for k, v in cut(op, problem, whole, check.true_tokens).items() if isinstance(v, torch.Tensor)}


def _unarmed(bench: Bench, check: Interleaving, result: RankResult) -> list[str]:
    return [
        line
        for rank, of in enumerate(result.outputs)
        for box in bench.boxes
        for line in box.unarmed(_typed(of[box.name], box.dtype, (box.parities, *box.shape)), check.calls, rank)
    ]


def _apart(check: Interleaving, order: int, first: Sequence[Tensors], again: Sequence[Tensors]) -> list[Coded]:
    """Outputs in which this run differs from the first one, on the same inputs; a line each."""
    found: list[Coded] = []
    for call, (one, two) in enumerate(zip(first, again, strict=False)):
        for name, tensor in two.items():
            if same_bits(one[name], tensor):
                continue
            at = f"{check.what}, call {call}: {name}"
            missing = int((_poison(one[name], POISON) & _poison(tensor, SECOND_POISON)).sum())
            if missing:
                found.append(("unwritten", f"{at}: {missing} of {tensor.numel()} elements were not written"))
            elif check.true_tokens:
                found.append(("padding", f"{at}: garbage in the rows that do not count changes it"))
            else:
                found.append(("nondeterministic", f"{at} is not the same under order {order} as in step"))
    return found


def _poison(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    data = tensor.contiguous().view(-1).view(torch.uint8).view(-1, tensor.element_size())
    return (data == byte).all(dim=1)
