from dataclasses import dataclass, replace

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.swapped import without
from faults.world.ids.two_sources_of_one_short_id import SOURCES
from support.sets import CURRENT, KEY, fill, make_case

from kgen import promotion
from kgen.promotion import Case as Promoted
from kgen.records import Candidate
from kgen.store import KernelSet
from kgen.store.signing import sign


def promotable(source: str) -> Promoted:
    """A case about exactly this source."""
    case = make_case(source)
    candidate = Candidate(case.candidate.op, source, case.candidate.origin)
    evidence = replace(case.evidence.evidence, candidate=candidate.id)
    return replace(
        case,
        candidate=candidate,
        verdict=replace(case.verdict, candidate=candidate.id),
        evidence=sign(evidence, KEY),
        builds=tuple(replace(b, candidate=candidate.id) for b in case.builds),
    )


@dataclass(frozen=True)
class Collision:
    """Both are promoted into one set, which is then checked."""

    def code(self, desk: Desk, off: Off) -> str:
        root = desk.fresh() / "set"
        with without(off):
            target = fill(root, *map(promotable, SOURCES))
        held = [KernelSet(root).manifest().promotions[n].source for n in (0, 1)]
        report = promotion.verify(target, CURRENT)
        return f"{len(set(held))} files, {'ok' if report.ok else 'damaged'}"


CASE = Case(
    row=29,
    what="two kernels whose short ids are the same are promoted into one set",
    who="kgen promote",
    code="2 files, ok",
    attack=Collision(),
    off=turned(
        "kgen.promotion.promote",
        "        free = name not in taken or taken[name] == sha256_bytes(data)",
        "        free = True",
        "a path that a manifest names is never written again",
    ),
    then="1 files, damaged",
)
