"""Promoted kernels in a model's seats, op by op and by token range, with a record of what sits where.

    binder = SwapBinder(arch="sm_90a", device="cuda", ops={"moe_shared": (1, 64)})
    engine = DecoderEngine(config, weights, REGISTRY, arch, binder, binder.launches)
    binder.seated        one record a seat: promoted (candidate and object hash) or stock, and why
    binder.launches()    {object sha256: {kernel: launches}} since the objects were loaded

An op that is not named, a token count outside its range and every doubt of `kgen.serve.load` mean the stock op. Not
covered: choosing kernels that are not promoted (the gates load those themselves).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kgen.contract.op import Op
from kgen.model.bind import OpCall
from kgen.records import Problem

PROMOTED, STOCK = "promoted", "stock"


@dataclass(frozen=True)
class Seated:
    """What sits in one seat; `candidate` and `object_sha256` are "" for stock, `reason` is "" for promoted."""

    seat: str
    problem: str
    path: str
    candidate: str = ""
    object_sha256: str = ""
    reason: str = ""


@dataclass
class SwapBinder:
    """`ops`: op name -> (fewest, most) rows of a step at which its promoted kernel is wanted."""

    arch: str
    device: str
    ops: Mapping[str, tuple[int, int]]
    kernels: Path | None = None  # a kernel set; None: the sets that serving looks into
    seated: list[Seated] = field(default_factory=list)
    _counts: dict[str, Callable[[], dict[str, int]]] = field(default_factory=dict)  # by object

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        low, high = self.ops.get(op.name, (0, -1))
        if not low <= problem.tokens <= high:
            wanted = f"outside {low} to {high} rows" if op.name in self.ops else "not asked for"
            self.seated.append(Seated(seat, problem.key, STOCK, reason=wanted))
            return op.stock(problem)
        from kgen.serve.load import load  # a model that swaps nothing needs no kernel set

        served = load(op.name, problem.dims, problem.tokens, self.arch, set=self.kernels, axes=problem.axes)
        if served.promotion is None:
            self.seated.append(Seated(seat, problem.key, STOCK, reason=served.reason))
            return op.stock(problem)
        sha256 = served.promotion.objects[problem.key]
        self._counts[sha256] = served.counts
        self.seated.append(Seated(seat, problem.key, PROMOTED, served.promotion.candidate, sha256))
        outputs = served.outputs(self.device)
        return lambda values: served({**values, **outputs})

    def launches(self) -> dict[str, dict[str, int]]:
        """Objects that several seats share have one counter, so each object counts once here."""
        return {sha256: {k: n for k, n in counts().items() if n} for sha256, counts in self._counts.items()}
