"""One point at work: its sets, its sides, and what of a job can be done on this machine.

bench = new_bench(job, registry, trace)  draws the sets that a rotation needs; with a trace, rows go where it says
bench.job, bench.left_out = able(bench)  the job without what cannot be done here, and why it cannot
build(bench, columns)                    seats of each side in each set
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kgen.contract.op import Registry
from kgen.gates import timing
from kgen.gates.layer import check
from kgen.gates.layer.chain import Lanes, OneLayer, cuda
from kgen.gates.layer.check import Built
from kgen.gates.layer.columns import COMPILED, PREFETCH, UNFUSED, Column, CompiledBinder, Tap, uncompiled
from kgen.gates.layer.draw import Drawn, draw
from kgen.gates.layer.points import Job
from kgen.gates.layer.prefetch import NONE, Ahead, Piece, Puller, Unavailable, pieces, stages
from kgen.gates.layer.traced import Noting, follow
from kgen.gates.routing import Recorded
from kgen.model.bind import Binder, StockBinder
from kgen.records import one_line

FEW_TOKENS = 8  # above, a layer takes so long that fewer calls spread the event pair to half a per cent
LONG_CALLS = 6


@dataclass
class Bench:
    """`sides`: by name, the built layer of every set. `pulling`: whether schedules are at work now."""

    job: Job
    registry: Registry
    sets: list[Drawn]
    sides: dict[str, list[Built]]
    clock: timing.Clock
    lane: Lanes
    puller: Puller | None = None
    pulling: bool = True
    experts: list[int] = field(default_factory=list)  # distinct ones of each set, by the unfused router
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Of one graph; on a CPU, where there is no event pair to spread, one rotation."""
        count = len(self.sets)
        if self.job.device == "cpu":
            return count
        return timing.calls_for(count) if self.job.point.tokens <= FEW_TOKENS else count * -(-LONG_CALLS // count)

    def pull(self, some: Sequence[Piece]) -> None:
        if self.puller is not None and self.pulling:
            self.puller(some)


def new_bench(job: Job, registry: Registry, trace: Recorded | None = None) -> Bench:
    """The sets; how many is known when the first one's step has been counted. Raises Refused."""
    first = draw(job, registry, 0)
    timing.refuse_persisting_l2(job.device)
    lane = Lanes(cuda.Stream() if job.device != "cpu" else None)
    bench = Bench(job, registry, [first], {}, timing.Clock(job.device), lane)
    (probe,) = build(bench, [Column(UNFUSED, lambda: Noting(StockBinder()), False)])
    if trace is not None:
        follow(probe, first, trace.ids(job.point.tokens, job.seed), 1)
    check.step(probe, first)
    touched = sum(h.bytes for h in probe.tap.heard)
    count = timing.sets_needed(touched, timing.l2_bytes(job.device), first.nbytes)
    bench.sets += [draw(job, registry, number) for number in range(1, count)]
    if trace is not None:
        for number, each in enumerate(build(bench, [Column(UNFUSED, lambda: Noting(StockBinder()), False)])):
            ids = trace.ids(job.point.tokens, job.seed + number)
            follow(each, bench.sets[number], ids, bench.calls // count)
    bench.sides.clear()
    return bench


def able(bench: Bench) -> tuple[Job, dict[str, str]]:
    """torch.compile is tried on one step, schedules on one layer: what fails is no finding about a kernel."""
    job, left_out = bench.job, dict[str, str]()
    why = uncompiled(job.device) or ("" if job.compiled else "not asked for") or _not_compiled(bench)
    if why:
        left_out[COMPILED] = why
    fine = [name for name in job.prefetch if _pulled(bench, name, left_out)]
    if job.prefetch and job.prefetch[0] not in fine:
        fine.insert(0, NONE)
    return replace(job, compiled=not why, prefetch=tuple(fine)), left_out


def _not_compiled(bench: Bench) -> str:
    (built,) = build(bench, [Column(COMPILED, CompiledBinder, False)], sets=1)
    del bench.sides[COMPILED]
    try:
        check.step(built, bench.sets[0])
    except RuntimeError as error:  # of dynamo, inductor and triton alike
        return one_line(f"torch.compile failed: {error}")
    return ""


def _pulled(bench: Bench, name: str, left_out: dict[str, str]) -> bool:
    """Whether a schedule can be run here."""
    try:
        wanted = stages(name, bench.job.point.kind)
        for stage in wanted:
            pieces(stage, bench.sets[0].weights, timing.l2_bytes(bench.job.device))
        if wanted and bench.puller is None and bench.job.device != "cpu":
            bench.puller = Puller.made(bench.job.device)
    except Unavailable as reason:
        left_out[f"{PREFETCH}{name}"] = str(reason)
        return False
    return True


def build(bench: Bench, chosen: Sequence[Column], sets: int | None = None) -> list[Built]:
    """Seats of every side in every set, or in the first so many; each layer has objects, outputs and workspaces of its
    own."""
    made = []
    for column in chosen:
        bench.sides[column.name] = [_built(bench, column, drawn) for drawn in bench.sets[:sets]]
        made += bench.sides[column.name]
    return made


def _built(bench: Bench, column: Column, drawn: Drawn) -> Built:
    job, tap = bench.job, Tap(column.binder())
    wanted = stages(column.schedule, job.point.kind)
    binder: Binder = tap
    if wanted:
        binder = Ahead(tap, wanted, drawn.weights, bench.pull, timing.l2_bytes(job.device))
    layer = OneLayer(
        replace(drawn.config, fused_oproj=column.fused),
        drawn.layer,
        drawn.weights,
        job.point.tokens,
        job.arch,
        binder,
        bench.registry,
        bench.lane if column.overlap else Lanes(),
        drawn.gathered,
    )
    return Built(layer, tap, pulls=bool(wanted))
