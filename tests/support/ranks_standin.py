"""The stand-in of ranked_allreduce_residual as what a part is told, at a small size."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kgen.contract.ranks import AXIS
from kgen.gates.ranks import host
from kgen.gates.ranks.job import OPS, STANDIN, RankedSpec
from kgen.gates.ranks.subject import StandIn
from kgen.records import SymmetricBuffer, to_json

OP = OPS["ranked_allreduce_residual"]


def standin(fault: str = "", tokens: int = 2, ranks: int = 2) -> RankedSpec:
    problem = OP.problem("nano", tokens, "sm_90a", {AXIS: str(ranks)})
    box = SymmetricBuffer("box", "bf16", (ranks, tokens, OP.sizes(problem)["hidden"]), 2, 0x8000_0000)
    return RankedSpec(problem, STANDIN, (box,), StandIn.WORKSPACES, candidate="stand-in", fault=fault)


def told(spec: RankedSpec, cache: Path, **more: Any) -> Mapping[str, Any]:
    """A job for the CPU; seeds and sizes that `more` may replace."""
    sizes = {"seed": 7, "replays": 4, "repetitions": 3, "baselines": [], "nccl": False, "seconds": 30}
    return {"specs": [to_json(spec)], "cache": str(cache), "transport": "host", **sizes, **more}


@contextmanager
def part(kind: str, spec: RankedSpec, cache: Path, kill: int = -1, **more: Any) -> Iterator[host.Part]:
    """Real processes, one a rank."""
    ranks = int(spec.problem.axes[AXIS])
    with host.running(kind, told(spec, cache, **more), ranks=ranks, device="cpu", deadline=90, kill=kill) as ended:
        yield ended
