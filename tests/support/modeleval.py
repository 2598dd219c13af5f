"""Stand-ins for candidates of any op in the model evaluation, in this process: what has run once is kept.

judge("reordered")                            # moe_shared in batches of 4, with both mutants
judge("growing_state", op="kda_core", sizes=only(drift=(64, 4, 8)))
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from kgen.gates import modeleval
from kgen.gates.modeleval.plan import TABLE, Sizes
from kgen.gates.modeleval.sides import Running
from kgen.gates.runner import decode_job, host
from kgen.gates.runner.job import LoadSpec, stock_spec
from kgen.gates.runner.out import CandidateFault, Out
from kgen.model.decoder.config import config
from kgen.model.decoder.draw import draw
from kgen.model.nano import safetensors_file
from kgen.ops import REGISTRY
from kgen.records import BuildRecord, Compiler, GateResult, Launch

DIMS, ARCH = "nano", "sm_90a"
MUTANTS = ("tile_scale", "drop_last_k")
SEEDS = (1, 2, 3)
NOTHING = Sizes(
    rows=0, least=0, drift=(0, 0, 0), filled=(0, 0, 0), free=(0, 0), long_free=(0, 0, 0), tasks=(0, 0),
    long=(0, 0, 0), verify=(0, 0), constrained=(0, 0, 0), sampling=(0, 0, 0),
    modes=("eager",), profiled=False, depth=2, shortest=True,
)  # fmt: skip
BRIEF = TABLE["cpu"]


def only(**parts: Any) -> Sizes:
    """A plan of these parts alone, beside the briefest forced batches, which the mutants need."""
    return dataclasses.replace(NOTHING, **{"rows": 24, "least": 6, **parts})


@dataclasses.dataclass(frozen=True)
class Stand:
    """What the gate knows of an artefact. The stand-in's name is the record's design."""

    record: BuildRecord
    object: Path = Path("none")


def stand(
    name: str,
    tokens: int,
    defect: str = "",
    op: str = "moe_shared",
    axes: Mapping[str, str] | None = None,
    kernels: Sequence[str] | None = None,
) -> Stand:
    """A build record whose launches are one call of the stand-in, unless `kernels` says otherwise."""
    launches = tuple(Launch(k, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0) for k in ([name] if kernels is None else kernels))
    problem = REGISTRY.get(op).problem(DIMS, tokens, ARCH, axes)
    sha256, compiler = "0" * 64, Compiler("0", "cu12")
    record = BuildRecord(
        candidate="c" * 64, problem=problem, function="kgen_entry", object_sha256=sha256, object_bytes=1,
        cubin_sha256=sha256, kernels=(), launches=launches, workspaces=(), compiler=compiler, isolation="test/1",
        compile_seconds=0.0, design=name, defect=defect,
    )  # fmt: skip
    return Stand(record)


def to_spec(built: Any) -> LoadSpec:
    return stock_spec(built.record.problem, built.record.design)


_KEPT: dict[str, tuple[tempfile.TemporaryDirectory[str], host.Outcome]] = {}


@contextmanager
def in_process(kind: str, job: Mapping[str, Any], **_: float) -> Iterator[host.Outcome]:
    """A runner's job without a process of its own: same code, same files; what ran before is kept."""
    assert kind == "decode"
    read = any(e["way"]["config"] == "nano" for e in job["exercises"])
    named = {**job, "checkpoint": job["checkpoint"] if read else ""}
    key = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    if key not in _KEPT:
        folder = tempfile.TemporaryDirectory()
        _KEPT[key] = folder, _outcome(job, Path(folder.name))
    yield _KEPT[key][1]


def _outcome(job: Mapping[str, Any], folder: Path) -> host.Outcome:
    (folder / "log").write_text("")
    out = Out(folder)
    try:
        out.finish({"done": True, **decode_job.run(dict(job), out)})
    except CandidateFault as fault:
        out.finish({"fault": str(fault)})
    return host.read(folder, 0, "", 0.0)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@cache
def checkpoint() -> Path:
    """Weights of the small model that nobody trained."""
    path = Path(_folder().name) / "drawn.safetensors"
    safetensors_file.write(path, dict(draw(config("nano"), REGISTRY, 3, "cpu").tensors), {})
    return path


def following(token: int) -> int:
    """What the chain model says after a token."""
    return (token * 5 + 7) % 512


@cache
def chain_checkpoint() -> Path:
    """A model that surely says `following` of its last token, whatever a rounding does: for marks that stock gets."""
    tensors = dict(draw(config("nano"), REGISTRY, 3, "cpu").tensors)
    embed = tensors["embed"].float()
    head = torch.empty_like(embed)
    head[torch.tensor([following(t) for t in range(512)])] = embed / embed.norm(dim=1, keepdim=True) * 8
    tensors["lm_head"] = head.bfloat16()
    for name in tensors:
        if name.endswith((".w_o", ".w_down", ".w_shared_down", ".w_up")):
            tensors[name] = tensors[name] * 0.1
    path = Path(_folder().name) / "chain.safetensors"
    safetensors_file.write(path, tensors, {})
    return path


def chain_mark(item: Any, generated: Sequence[int]) -> bool:
    """Right if the first tokens follow each other as the chain model has them."""
    said = [item.prompt[-1], *generated[:3]]
    return len(said) == 4 and all(b == following(a) for a, b in pairwise(said))


def judge(
    name: str,
    *,
    op: str = "moe_shared",
    bins: Sequence[int] = (4,),
    axes: Mapping[str, str] | None = None,
    mutants: Sequence[Stand] | None = None,
    kernels: Sequence[str] | None = None,
    sizes: Sizes | None = None,
    running: Running = in_process,
    seeds: tuple[int, int, int] = SEEDS,
    weights: Path | None = None,
    mark: Any = chain_mark,
    say: Callable[[str], None] = lambda line: None,
) -> GateResult:
    built = [stand(name, tokens, op=op, axes=axes, kernels=kernels) for tokens in bins]
    broken = [stand(m, bins[-1], m, op=op, axes=axes) for m in MUTANTS] if mutants is None else mutants
    return modeleval.run(
        REGISTRY.get(op), built, broken, cache=Path("unused"), device="cpu", seeds=seeds, to_spec=to_spec,
        running=running, sizes=sizes or only(), checkpoint=weights or checkpoint(), mark=mark, say=say,
    )  # fmt: skip
