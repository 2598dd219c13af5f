"""A candidate's kernels as PTX in the interpreter, in an artefact's place: the same buffers, the same checks, no GPU.

Every call runs under a warp schedule of its own: the first with all warps in step, later ones each in another order.
What the interpreter finds (memory, races, barriers) is found by the check that made the call. Not covered: whether the
PTX belongs to the object that a GPU would run; nothing judged here is promoted.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from kgen.contract import Op
from kgen.gates import ptx
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.ptx import Finding, Kind
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.subject import Call, Ended
from kgen.gates.sandbox import choose
from kgen.gates.signature import arguments
from kgen.records import Launch

CODES = {  # kind of a finding -> code of the gate
    Kind.OUT_OF_BOUNDS: "memory",
    Kind.MISALIGNED: "memory",
    Kind.UNINITIALISED: "memory",
    Kind.OVERFLOW: "memory",
    Kind.INPUT_WRITTEN: "inputs_written",
    Kind.RACE: "race",
    Kind.ASYNC: "race",
    Kind.CLUSTER: "race",
    Kind.PROXY: "race",
    Kind.PDL: "race",
    Kind.BARRIER: "barrier",
    Kind.DEADLOCK: "barrier",
    Kind.MBARRIER: "barrier",
    Kind.TRAP: "crash",
}


class PtxSubject:
    """Raises PtxError or OSError for text that cannot be read."""

    def __init__(self, spec: LoadSpec, op: Op, cache: Path) -> None:
        self.spec, self.op, self.cache = spec, op, cache
        self.text = Path(spec.ptx).read_text(encoding="utf-8")
        self.sampled = arguments(op, spec.problem, spec.workspaces)
        self.recorded: dict[tuple[Argument, ...], tuple[Launch, ...]] = {tuple(self.sampled): spec.launches}
        self.calls = self.instructions = 0
        self.seen: list[tuple[str, str]] = []

    def bind(self, buffers: BufferSet) -> Call:
        launches = self._launches(buffers)
        return lambda: self._call(buffers, launches)

    def counts(self) -> dict[str, int]:
        return {launch.kernel: self.calls for launch in self.spec.launches}

    def findings(self) -> list[tuple[str, str]]:
        """Code and text of what the calls since the last time were found to do."""
        found, self.seen = self.seen, []
        return found

    def _call(self, buffers: BufferSet, launches: Sequence[Launch]) -> None:
        result = ptx.run(self.text, launches, self._buffers(buffers), seed=self.calls)
        self.calls += 1
        self.instructions += result.lanes
        self.seen += [_coded(f) for f in result.findings]
        if result.skipped:
            raise Ended("unsupported", f"{self.spec.problem.key}: the interpreter does not know {result.skipped}")
        if result.stopped:
            code, text = self.seen[0] if self.seen else ("budget", result.stopped)
            raise Ended(code, f"{self.spec.problem.key}: {text}")
        for name, data in result.outputs.items():
            target = buffers.buffers[name] if name in buffers.buffers else buffers.work[int(name[len("workspace") :])]
            target.data.copy_(torch.from_numpy(data))

    def _buffers(self, buffers: BufferSet) -> dict[str, ptx.Buffer]:
        """What the interpreter may reach: every tensor between its guards, and the workspaces."""
        found = {}
        for spec in self.op.present(self.spec.problem):
            held = buffers.buffers[spec.name]
            shape, strides = tuple(held.tensor.shape), tuple(held.tensor.stride()) if held.gap is not None else ()
            role = spec.role.value
            found[spec.name] = ptx.Buffer(held.data.numpy(), spec.dtype, shape, role, role != "out", strides)
        for number, ((dtype, shape), held) in enumerate(zip(self.spec.workspaces, buffers.work, strict=True)):
            found[f"workspace{number}"] = ptx.Buffer(held.data.numpy(), dtype, tuple(shape), "workspace", True)
        return found

    def _launches(self, buffers: BufferSet) -> tuple[Launch, ...]:
        """Of a call with these very arguments: recorded anew where they are not those that the build recorded."""
        given = tuple(_given(a, buffers) for a in self.sampled)
        if given not in self.recorded:
            data = Path(self.spec.object).read_bytes()
            recorder = Recorder(choose(), self.cache.parent / "recorder")
            self.recorded[given] = recorder.record(data, objects.check(data, self.spec.problem.arch), given)
        return self.recorded[given]


def _given(argument: Argument, buffers: BufferSet) -> Argument:
    """The argument as these buffers hold it."""
    if argument.shape is None:
        return Argument(argument.name, argument.dtype, None, buffers.scalars[argument.name])
    if argument.name not in buffers.buffers:
        return argument
    buffer = buffers.buffers[argument.name]
    pitch = buffer.tensor.stride(0) if buffer.gap is not None else 0
    return Argument(argument.name, argument.dtype, tuple(buffer.tensor.shape), pitch=pitch)


def _coded(finding: Finding) -> tuple[str, str]:
    return CODES[finding.kind], str(finding)
