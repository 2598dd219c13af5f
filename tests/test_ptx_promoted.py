"""Every promoted source, built at the small dims, is right in the PTX interpreter; each planted defect is refused."""

from collections.abc import Callable

import pytest
from support.builds import shared
from support.committed import SET

from kgen.gates import numeric
from kgen.gates.compile import CompileGate
from kgen.gates.contract import DEFECTS
from kgen.loop.matrix import AROUND
from kgen.ops import REGISTRY
from kgen.records import Candidate, GateResult, Origin, Promotion, Status
from kgen.store.kernelset import KernelSet

PROMOTED = {p.candidate: p for p in KernelSet(SET).manifest().promotions}  # a source once, however often promoted
Judge = Callable[[Promotion, tuple[int, ...], str], GateResult]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    cache = tmp_path_factory.mktemp("cache")

    def judge(promotion: Promotion, bins: tuple[int, ...], defect: str) -> GateResult:
        op = REGISTRY.get(promotion.op)
        source = KernelSet(SET).source(promotion)
        with CompileGate(op, cache, shared()) as gate:
            problems = [op.problem(op.pack.small, n, "sm_90a") for n in bins]
            report = gate.run(Candidate(op.name, source, Origin("test")), problems, defect)
        assert report.result.passed, report.result.message
        return numeric.interpret(op, report.artefacts, cache=cache / "linked")

    return judge


def cells() -> list[object]:
    """A case for each source, behind `deep` but for one op. What was interpreted of the others' families is on record,
    benchmarks/families.json; of some families their first point only, which need not be the one that serves."""
    marks = {c: () if p.op == "moe_shared" else (pytest.mark.deep,) for c, p in PROMOTED.items()}
    return [pytest.param(c, id=f"{PROMOTED[c].op} {c[:12]}", marks=m) for c, m in marks.items()]


@pytest.mark.parametrize("candidate", cells())
@pytest.mark.parametrize("bins", [AROUND[:1], pytest.param(AROUND, marks=pytest.mark.deep)], ids=["one", "around"])
def test_a_promoted_source_is_right_and_without_a_finding(candidate: str, bins: tuple[int, ...], judged: Judge) -> None:
    result = judged(PROMOTED[candidate], bins, "")
    assert (result.status, result.code) == (Status.PASS, "numeric.ptx_pass"), result.message


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("candidate", cells())
def test_a_planted_defect_is_refused(candidate: str, defect: str, judged: Judge) -> None:
    result = judged(PROMOTED[candidate], AROUND[:1], defect)
    assert (result.status, result.code) == (Status.FAIL, "numeric.error"), result.message
