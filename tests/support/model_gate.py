"""A candidate for the full-model gate without a GPU: stand-ins at nano dims, run in this process or in real ones.

judge("reordered")                 # GateResult of the stand-in of that name, mutants included
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kgen.gates import fullmodel
from kgen.gates.fullmodel_sides import Running
from kgen.gates.runner import host, model_job
from kgen.gates.runner.job import Built, LoadSpec, stock_spec
from kgen.gates.runner.out import CandidateFault, Out
from kgen.ops import REGISTRY
from kgen.records import BuildRecord, Compiler, GateResult, Launch

OP, DIMS, ARCH = "moe_shared", "nano", "sm_90a"
MUTANTS = ("tile_scale", "drop_last_k")
SEEDS = (1, 2)


@dataclasses.dataclass(frozen=True)
class Stand:
    """What the gate knows of an artefact. The stand-in's name is the record's design."""

    record: BuildRecord
    object: Path = Path("none")


def stand(name: str, tokens: int, defect: str = "", kernels: Sequence[str] | None = None) -> Stand:
    """A build record whose launches are one call of the stand-in, unless `kernels` says otherwise."""
    launches = tuple(Launch(k, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0) for k in ([name] if kernels is None else kernels))
    return Stand(
        BuildRecord(
            candidate="c" * 64,
            problem=REGISTRY.get(OP).problem(DIMS, tokens, ARCH),
            function="kgen_entry",
            object_sha256="0" * 64,
            object_bytes=1,
            cubin_sha256="0" * 64,
            kernels=(),
            launches=launches,
            workspaces=(),
            compiler=Compiler("0", "cu12"),
            isolation="test/1",
            compile_seconds=0.0,
            design=name,
            defect=defect,
        )
    )


def to_spec(built: Built) -> LoadSpec:
    return stock_spec(built.record.problem, built.record.design)


@contextmanager
def in_process(kind: str, job: Mapping[str, Any], **_: float) -> Iterator[host.Outcome]:
    """A runner's job without a process of its own: same code, same files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log").write_text("")
        out = Out(folder)
        try:
            out.finish({"done": True, **model_job.run(dict(job), out)})
        except CandidateFault as fault:
            out.finish({"fault": str(fault)})
        yield host._read(folder, 0, "", 0.0)


def judge(
    name: str,
    bins: Sequence[int] = (4, 8),
    mutants: Sequence[Stand] | None = None,
    kernels: Sequence[str] | None = None,
    running: Running = in_process,
    seeds: tuple[int, int] = SEEDS,
) -> GateResult:
    built = [stand(name, tokens, kernels=kernels) for tokens in bins]
    broken = [stand(m, bins[-1], m) for m in MUTANTS] if mutants is None else mutants
    return fullmodel.run(
        REGISTRY.get(OP),
        built,
        broken,
        cache=Path("unused"),
        device="cpu",
        seeds=seeds,
        to_spec=to_spec,
        running=running,
    )
