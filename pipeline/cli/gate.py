"""kgen gate NAME FILE: one gate on one candidate file, without a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import (
    AxisOption,
    CacheOption,
    JsonOption,
    TraceOption,
    axes_of,
    cache_at,
    checked,
    find_op,
    one_of,
    trace_at,
)
from kgen.records import GATES

if TYPE_CHECKING:
    from kgen.contract.op import Op
    from kgen.gates.compile import CompileReport
    from kgen.gates.routing import Recorded
    from kgen.loop.settings import Settings
    from kgen.records import Candidate, GateResult

MAX_SOURCE = 1 << 20


def register(app: typer.Typer) -> None:
    app.command("gate")(gate)


def gate(
    name: Annotated[str, typer.Argument(metavar="GATE", help=", ".join(GATES))],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The candidate, or - for stdin.")],
    op: Annotated[str, typer.Option("--op", help="The op that it is for.")],
    arch: Annotated[list[str] | None, typer.Option("--arch", help="Repeat for several (default: sm_90a).")] = None,
    dims: Annotated[list[str] | None, typer.Option("--dims", help="Repeat for several (default: all).")] = None,
    tokens: Annotated[
        list[int] | None, typer.Option("--tokens", help="Repeat for several (default: quick bins).")
    ] = None,
    axis: AxisOption = None,
    device: Annotated[
        str, typer.Option("--device", help="Of unit-numeric: cuda, or ptx (the PTX interpreter, no GPU needed).")
    ] = "cuda",
    routing_trace: TraceOption = "",
    cache: CacheOption = "",
    unsafe: Annotated[bool, typer.Option("--unsafe-no-sandbox", help="Build without a sandbox.")] = False,
    json: JsonOption = False,
) -> None:
    """Run one gate on a candidate file. GPU gates build it first, and need a GPU of that architecture.

    unit-numeric runs without a GPU with --device ptx: small dims unless others are named, tokens 1, 4 and 16.
    """
    from kgen.gates.runner.job import PTX
    from kgen.loop.matrix import AROUND
    from kgen.loop.settings import Settings
    from kgen.records import Candidate, Origin
    from kgen.report.judged import routing_of

    one_of("GATE", name, GATES)
    one_of("--device", device, ("cuda", PTX))
    if device == PTX and name != "unit-numeric":
        raise boundary.Usage("--device ptx is for unit-numeric: the other gates need a GPU, or none at all")
    found = find_op(op)
    if device == PTX:
        dims, tokens = dims or [found.pack.small], tokens or list(AROUND)
    asked = Settings(
        found.name,
        "file",
        archs=tuple(arch or ["sm_90a"]),
        dims=tuple(dims or ()),
        bins=tuple(tokens or found.pack.quick_bins),
        axes=axes_of(axis or []),
        unsafe=unsafe,
    )
    settings = checked(asked, found)
    trace = _trace(name, found, settings, routing_trace)
    candidate = Candidate(found.name, _source(file), Origin("file", {"name": Path(file).name}))
    result = _run(name, found, settings, candidate, cache_at(cache), device, trace)
    if json:
        output.emit({"schema": "kgen.gate/1", "candidate": candidate.id, "result": result})
    else:
        how = routing_of(found, [result])
        line = f"{candidate.id[:12]}  {result.gate}  {result.status}  {result.code}  ({result.seconds:.1f} s)"
        output.data(f"{line}  {how}" if how and name == GATES[-1] else line)
        output.data(result.message)
    raise typer.Exit(EXIT[result.status.value])


EXIT = {
    "pass": boundary.OK,
    "fail": boundary.FAILED,
    "error": boundary.INFRASTRUCTURE,
    "skip": boundary.ENVIRONMENT,
}


def _trace(name: str, op: "Op", settings: "Settings", path: str) -> "Recorded | None":
    """The trace asked for. Raises Usage where it has no place."""
    from kgen.gates.routing import unfit
    from kgen.loop import matrix

    trace = trace_at(path)
    if trace is None:
        return None
    if name != GATES[-1]:
        raise boundary.Usage(f"--routing-trace is for {GATES[-1]}: {name} times nothing")
    if why := unfit(op, [p for p in matrix.full(op, settings) if p.dims in op.served], trace):
        raise boundary.Usage(why)
    return trace


def _source(file: str) -> str:
    """Raises Usage (one line) for a file that is no candidate."""
    if file == "-":
        data = sys.stdin.buffer.read(MAX_SOURCE + 1)
    else:
        try:
            with Path(file).open("rb") as handle:
                data = handle.read(MAX_SOURCE + 1)
        except OSError as error:
            raise boundary.Usage(f"cannot read {file}: {error.strerror}") from None
    if len(data) > MAX_SOURCE:
        raise boundary.Usage(f"{file} is larger than a candidate may be ({MAX_SOURCE >> 20} MiB)")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise boundary.Usage(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def _run(
    name: str,
    op: "Op",
    settings: "Settings",
    candidate: "Candidate",
    cache: Path,
    device: str,
    trace: "Recorded | None",
) -> "GateResult":
    from kgen.gates import kinds
    from kgen.gates.builder.pool import Builder
    from kgen.gates.compile import CompileGate
    from kgen.gates.contract import DEFECTS
    from kgen.gates.runner.job import PTX
    from kgen.gates.sandbox import choose
    from kgen.loop import matrix
    from kgen.store.cache import linked_in

    with Builder(choose(unsafe_no_sandbox=settings.unsafe)) as builder, CompileGate(op, cache, builder) as compiler:
        report = compiler.run(candidate, matrix.full(op, settings))
        if name == "compile" or not report.result.passed:
            return report.result
        if device == PTX:
            return kinds.of(op).interpret(op, report.artefacts, cache=linked_in(cache))
        mutants: list[CompileReport] = []
        if name == "full-model-eval":
            problems = matrix.mutants(op, settings)
            mutants = [compiler.run(candidate, [p], defect) for defect in DEFECTS for p in problems]
    return _on_gpu(name, op, report, mutants, linked_in(cache), trace)


def _on_gpu(
    name: str,
    op: "Op",
    report: "CompileReport",
    mutants: "list[CompileReport]",
    cache: Path,
    trace: "Recorded | None",
) -> "GateResult":
    from kgen.gates import modeleval, numeric, perf

    command = "on a GPU host run this command again; or kgen propose, kgen kit and kgen ingest"
    if name == "unit-numeric":
        return numeric.run(op, report.artefacts, cache=cache, next_command=command)
    if name == "full-model-eval":
        broken = [a for m in mutants for a in m.artefacts]
        return modeleval.run(op, report.artefacts, broken, cache=cache, next_command=command)
    return perf.run(op, report.artefacts, cache=cache, next_command=command, trace=trace)[0]
