"""What the committed kernel set says now, however often it was promoted: nothing here names a kernel or a number.

serving("moe_shared")         the promotions that serve points, oldest first
headline("moe_shared")        {(dims, true tokens): PerfPoint} of the points that serve, each from its own evidence
"""

from support.checkout import ROOT

from kgen.records import PerfPoint, Promotion
from kgen.records.envelope import HEADLINE
from kgen.store.kernelset import KernelSet, parse_problem

SET = ROOT / "generated_kernels"


def serving(op: str) -> list[Promotion]:
    manifest = KernelSet(SET).manifest()
    mine = {seq for key, seq in manifest.champions.items() if parse_problem(key).op == op}
    return [p for p in manifest.promotions if p.seq in mine]


def headline(op: str) -> dict[tuple[str, int], PerfPoint]:
    kernels, found = KernelSet(SET), dict[tuple[str, int], PerfPoint]()
    champions = kernels.manifest().champions
    for promotion in serving(op):
        for p in kernels.evidence(promotion).evidence.points:
            if champions.get(p.problem) == promotion.seq and p.column == HEADLINE and not p.scenario:
                found[parse_problem(p.problem).dims, p.tokens] = p
    return found
