"""The sides of a comparison: what sits in the seats, and whether work runs beside other work.

    unfused        every op's stock, nothing compiled: the library ops one by one
    compiled       every op's stock with torch.compile on its element-wise parts
    chain          the set's kernels in their seats as serving loads them; ops without one run the best stock there is
    no_overlap     the chain with all ops on one stream
    no_prefetch    the chain without its schedule of weights pulled into L2, where it has one
    prefetch_<s>   the chain with another such schedule
    no_fusion      the chain with output projection and residual mix as two ops, where a promoted kernel joins them
    no_promoted    the chain with the stock ops in all seats
    without_<op>   the chain with one op's kernel left out

A `Tap` round the binder hears what each seat was given and gave, while it listens, and can cut the chain behind a seat.
"""

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kgen.contract import Role, Values
from kgen.contract.op import Op, Registry
from kgen.gates.layer.points import Job, model_of
from kgen.gates.layer.prefetch import NONE
from kgen.model.bind import Binder, OpCall, StockBinder
from kgen.model.decoder.config import FUSED_OPROJ, sizes
from kgen.model.decoder.swap import PROMOTED, SwapBinder
from kgen.ops.router_rules import weights_of
from kgen.records import Problem

UNFUSED, COMPILED, CHAIN = "unfused", "compiled", "chain"
NO_OVERLAP, NO_FUSION, NO_PROMOTED = "no_overlap", "no_fusion", "no_promoted"
NO_PREFETCH, PREFETCH, WITHOUT = "no_prefetch", "prefetch_", "without_"
ROUTER = "moe_router"
Made = Callable[[], Binder]


class CompiledBinder:
    """Every op's stock with torch.compile, states in place."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        return op.stock(problem, torch.compile)


@dataclass
class Promoted:
    """The set's kernels; `others` sits where there is none. `swap.seated` says which is which, and why."""

    swap: SwapBinder
    others: Binder

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = self.swap.bind(op, problem, seat)
        return call if self.swap.seated[-1].path == PROMOTED else self.others.bind(op, problem, seat)


@dataclass(frozen=True)
class Column:
    name: str
    binder: Made
    overlap: bool
    fused: bool = False  # one op for output projection, sum over ranks and residual mix
    schedule: str = NONE  # of weights pulled into L2


def joined(job: Job, registry: Registry) -> bool:
    """Whether a promoted kernel joins output projection and residual mix here. Not on a rank with peers: the sum over
    them is what is left out."""
    dims = model_of(job.point.setting).dims
    if sizes(registry.get(FUSED_OPROJ), dims)["ranks"] > 1:
        return False
    from kgen.serve.load import load  # only where it is asked

    served = load(FUSED_OPROJ, dims, job.point.tokens, job.arch, set=job.kernels or None, axes={"variant": "delta"})
    return served.promoted


def uncompiled(device: str) -> str:
    """Why torch.compile is left out here, "" where it can be tried."""
    if device == "cpu":
        return "on a CPU it compiles for minutes, and says nothing about a GPU"
    if importlib.util.find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    return "" if shutil.which("cc") or shutil.which("gcc") else "torch.compile needs a C compiler"


def columns(job: Job, registry: Registry, serving: Mapping[str, int] | None = None) -> list[Column]:
    """The sides of a job. `serving`: ops that have a promoted kernel here, for `job.each`."""
    compiled = job.compiled and not uncompiled(job.device)
    best: Made = CompiledBinder if compiled else StockBinder

    def promoted(without: str = "") -> Made:
        rows = {name: (1, job.point.tokens) for name in registry.ops if name != without}
        kernels = Path(job.kernels) if job.kernels else None
        return lambda: Promoted(SwapBinder(job.arch, job.device, rows, kernels), best())

    found = [Column(UNFUSED, StockBinder, False)]
    found += [Column(COMPILED, CompiledBinder, False)] if compiled else []
    fused = joined(job, registry)
    own, *others = job.prefetch or (NONE,)
    chain = Column(CHAIN, promoted(), True, fused, own)
    found += [chain, replace(chain, name=NO_OVERLAP, overlap=False)]
    found += [replace(chain, name=NO_PREFETCH, schedule=NONE)] if own != NONE else []
    found += [replace(chain, name=f"{PREFETCH}{s}", schedule=s) for s in others if s not in (own, NONE)]
    found += [replace(chain, name=NO_FUSION, fused=False)] if fused else []
    found += [Column(NO_PROMOTED, best, True, schedule=own)]
    served = serving if serving and job.each else {}
    return found + [replace(chain, name=f"{WITHOUT}{op}", binder=promoted(op)) for op in served]


@dataclass(frozen=True)
class Heard:
    """One call of a seat: `outputs` are copies of what it wrote anew, `cost` by its very inputs."""

    seat: str
    op: str
    problem: Problem
    outputs: Mapping[str, torch.Tensor]
    bytes: int
    breaches: tuple[str, ...]  # of the op's hard rules; of the router only, whose choice is replaced


class Cut(Exception):
    """The chain ends behind this seat."""


@dataclass
class Tap:
    """A binder round another. `ids`: experts of each row that every side takes instead of its router's choice."""

    inner: Binder
    listening: bool = False
    heard: list[Heard] = field(default_factory=list)
    ids: torch.Tensor | None = None
    cut: int | None = None  # calls that are made before the chain ends
    _made: int = 0

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = self.inner.bind(op, problem, seat)

        def tapped(values: Values) -> dict[str, torch.Tensor]:
            bytes_moved = op.cost_of(problem, values).bytes if self.listening else 0
            got = call(values)
            if self.listening:
                self._hear(op, problem, seat, values, got, bytes_moved)
            if op.name == ROUTER and self.ids is not None:
                got = {**got, "ids": self.ids, "w": _weights(values, self.ids).to(got["w"].dtype)}
            self._made += 1
            if self.cut is not None and self._made == self.cut:
                raise Cut
            return got

        return tapped

    def start(self) -> None:
        """A new step begins."""
        self._made = 0
        self.heard.clear()

    def _hear(
        self, op: Op, problem: Problem, seat: str, values: Values, got: dict[str, torch.Tensor], moved: int
    ) -> None:
        own = {t.name for t in op.present(problem) if t.role is Role.OUT}
        copies = {name: value.clone() for name, value in got.items() if name in own}
        wide = any(isinstance(v, torch.Tensor) and v.dtype is torch.float64 for v in values.values())
        breaches = () if op.name != ROUTER or wide else tuple(op.hard_rules(problem, values, copies))
        self.heard.append(Heard(seat, op.name, problem, copies, moved, breaches))

    def seats(self) -> Iterator[str]:
        return (h.seat for h in self.heard)


def _weights(values: Values, ids: torch.Tensor) -> torch.Tensor:
    """[rows, top_k]: renormalised scores of these experts by the side's own logits."""
    m, w_router = values["m"], values["w_router"]
    assert isinstance(m, torch.Tensor) and isinstance(w_router, torch.Tensor)
    wide = torch.float64 if m.dtype is torch.float64 else torch.float32
    return weights_of(torch.sigmoid(m.to(wide) @ w_router.to(wide).T), ids.long(), float(values["scale"]))
