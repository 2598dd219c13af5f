"""Points of the kernel families of `search`: built by the real compile gate, run in the PTX interpreter."""

import ast
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from support.builds import shared

from kgen.contract import Op
from kgen.gates import numeric
from kgen.gates.artefacts import Artefact
from kgen.gates.compile import CompileGate
from kgen.proposers.families import Variant, render
from kgen.records import Candidate, GateResult, Origin, Problem


def built(op: Op, variant: Variant, problems: Iterable[Problem], folder: Path) -> list[Artefact]:
    """In the order of the problems; an AssertionError with the gate's message where it refuses."""
    candidate = Candidate(op.name, render(variant), Origin("test"))
    with CompileGate(op, folder, shared()) as gate:
        report = gate.run(candidate, list(problems))
    assert report.result.passed, f"{dict(variant.values)}: {report.result.message}"
    return list(report.artefacts)


def interpreted(op: Op, variant: Variant, problems: Iterable[Problem], folder: Path) -> GateResult:
    """unit-numeric on all value families of these points."""
    return numeric.interpret(op, built(op, variant, problems, folder), cache=folder / "linked")


def ready(
    op: Op, point: Variant, folder: Path, tokens: int, dims: tuple[str, str], axes: Mapping[str, str] | None = None
) -> list[Artefact]:
    """Built at the first dims for sm_90a and at the second for sm_103a: no stack, data moves 16 bytes at a time."""
    archs = ("sm_90a", "sm_103a")
    made = built(op, point, [op.problem(d, tokens, a, axes) for d, a in zip(dims, archs, strict=True)], folder)
    for artefact in made:
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}
        assert artefact.record.ptx["global_loads_16b"] >= 4
        assert artefact.record.ptx["pdl_wait"] == len(artefact.record.launches)
    return made


def functions(variant: Variant) -> dict[str, Callable[..., Any]]:
    """What the source computes without the compiler: its constants, and functions that carry no decorator."""
    kept = [
        node
        for node in ast.parse(render(variant)).body
        if isinstance(node, ast.Assign) or (isinstance(node, ast.FunctionDef) and not node.decorator_list)
    ]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(list(kept), []), "candidate", "exec"), names)
    return names
