"""Is a model of a space better than chance? Points by tpe and by random, judged by static cost of real builds.

    cd tests && python -m search_record [CACHE]      # a few minutes; writes data/search_record.json

The same number of points for each, in rounds as `kgen propose --search` asks for them, over fixed seeds, without the
known good points. The record is data: a test reads it and repeats the first seeds' choices from it.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate
from kgen.gates.sandbox import choose
from kgen.loop.cost import static_cost
from kgen.ops import REGISTRY
from kgen.proposers.base import ProposalRequest
from kgen.proposers.families import FAMILIES, Space, Variant, render
from kgen.proposers.studies import METHODS, RANDOM, TPE, modelled
from kgen.records import Candidate, GateResult, Origin, Status, Verdict

PATH = Path(__file__).parent / "data/search_record.json"
OP, DIMS, TOKENS, ARCH = "moe_latent_down", "k3-tp16", 8, "sm_90a"
SEEDS, ROUNDS, PER_ROUND = (0, 1, 2), 5, 4
FAMILY = FAMILIES[OP]
COMPARED = (TPE, RANDOM)


def candidate(variant: Variant) -> Candidate:
    return Candidate(OP, render(variant), Origin("search", {"template": variant.template, "values": variant.values}))


def point_of(space: Space, made: Candidate) -> Mapping[str, Any] | None:
    detail = made.origin.detail
    return space.point(Variant(str(detail["template"]), detail["values"]))


class Chosen:
    """What one method has proposed with one seed, and what it cost: id -> µs (None: it did not build)."""

    def __init__(self, method: str, seed: int) -> None:
        assert method in METHODS
        self.method, self.seed = method, seed
        self.made: list[Candidate] = []
        self.us: dict[str, float | None] = {}

    def next(self) -> list[Candidate]:
        """The next round's new candidates."""
        request = ProposalRequest(
            op=REGISTRY.get(OP),
            problems=(REGISTRY.get(OP).problem(DIMS, TOKENS, ARCH),),
            archs=(ARCH,),
            run=Path("unused"),
            history=tuple((c, self._verdict(c)) for c in self.made),
            costs={c.id: {TOKENS: us} for c in self.made if (us := self.us[c.id]) is not None},
            seed=self.seed,
        )
        known, found = {c.id for c in self.made}, dict[str, Candidate]()
        for index, point in islice(modelled(FAMILY.spaces, request, self.method, point_of), 200):
            made = candidate(FAMILY.spaces[index].variant(point))
            if made.id not in known:
                found[made.id] = made
            if len(found) == PER_ROUND:
                break
        return list(found.values())

    def take(self, made: Candidate, us: float | None) -> None:
        self.made.append(made)
        self.us[made.id] = us

    def _verdict(self, made: Candidate) -> Verdict:
        failed = GateResult("compile", Status.FAIL, "compile.dsl", "", {})
        return Verdict(made.id, (failed,) if self.us[made.id] is None else ())

    @property
    def best(self) -> float:
        return min(us for us in self.us.values() if us is not None)


def measured(place: str = "") -> dict[str, Any]:
    """The whole record, through the real compiler; builds are kept in `place`, else thrown away."""
    op = REGISTRY.get(OP)
    rows = []
    with tempfile.TemporaryDirectory() as thrown_away, Builder(choose()) as builder:
        cache = place or thrown_away
        for seed in SEEDS:
            for method in COMPARED:
                chosen = Chosen(method, seed)
                with CompileGate(op, Path(cache), builder) as gate:
                    for made in (c for _ in range(ROUNDS) for c in chosen.next()):
                        report = gate.run(made, [op.problem(DIMS, TOKENS, ARCH)])
                        built = [a.record for a in report.artefacts] if report.result.passed else []
                        chosen.take(made, static_cost(op, built) if built else None)
                rows.append({"method": method, "seed": seed, "us": [[c[:12], us] for c, us in chosen.us.items()]})
    return {"op": OP, "dims": DIMS, "tokens": TOKENS, "arch": ARCH, "rounds": ROUNDS, "rows": rows}


if __name__ == "__main__":
    PATH.write_text(json.dumps(measured(*sys.argv[1:2]), indent=1) + "\n", encoding="utf-8")
