"""Which implementation of a gate serves an op: one table, asked by the op's class.

    of(op).interpret(op, artefacts, cache=..., deadline=...) -> GateResult

What both kinds share is not here: the compile gate (kgen.gates.signature knows the arguments of either), and skips
where GPUs are lacking (kgen.gates.skipping counts those that an op needs).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kgen.contract import Op
from kgen.contract.ranks import RankedOp
from kgen.gates import numeric
from kgen.gates.ranks.interpret import interpret as interpret_ranks
from kgen.gates.runner.job import Interpretable
from kgen.records import GateResult


class Interpret(Protocol):
    def __call__(
        self, op: Op, artefacts: Sequence[Interpretable], *, cache: Path, deadline: float = numeric.DEADLINE_SECONDS
    ) -> GateResult: ...


@dataclass(frozen=True)
class Kind:
    """`interpret`: unit-numeric on device ptx. `here`: whether a run judges it on the GPU of its own machine, with
    mutants for the model gate. `elsewhere`: what brings it to a GPU from run {run}."""

    interpret: Interpret
    here: bool
    elsewhere: str


ONE_RANK = Kind(
    numeric.interpret, True, "kgen kit {run} -o kit.pyz, run it on a GPU host, then kgen ingest evidence.json"
)
SEVERAL_RANKS = Kind(
    interpret_ranks, False, "kgen kit {run} -o kit.pyz, run it on a host with that many GPUs: it writes ranks.json"
)


def of(op: Op) -> Kind:
    return SEVERAL_RANKS if isinstance(op, RankedOp) else ONE_RANK
