"""Real wrong kernels, compiled here and interpreted: the page that goes back says where they are wrong."""

from pathlib import Path

import pytest
from support.builds import shared

from kgen.diagnosis.shown import of_failure, shown
from kgen.gates import numeric
from kgen.gates.compile import CompileGate
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin

OP = REGISTRY.get("moe_shared")
GOOD = (Path(__file__).parents[1] / "docs/examples/moe_shared.py").read_text()
STORE = "mY[token, row] = value.to(BFloat16)"
FAULTS = {  # edit, words that the page must hold
    "every 16th column from 8": (
        STORE,
        "if row % 16 == 8:\n                    value = value * 1.5 + 1.0\n                " + STORE,
        ("every 16th hidden from 8",),
    ),
    "only above 8 tokens": (
        STORE,
        "if cutlass.const_expr(self.tokens > 8):\n                    value = value * 1.5\n                " + STORE,
        ("only when tokens > 8", "scaled by one factor, about 1.5"),
    ),
    "the last slice of K is dropped": (
        "value = self.dot(mH[token, None], mW[row, None], self.width, lane)",
        "value = self.dot(mH[token, None], mW[row, None], self.width - 16, lane)",
        ("were left out of each sum",),
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_told_where_it_is_wrong(fault: str, tmp_path: Path) -> None:
    old, new, words = FAULTS[fault]
    assert old in GOOD
    bins = (8, 16) if "tokens" in words[0] else (4,)
    problems = [OP.problem("nano", n, "sm_90a") for n in bins]
    with CompileGate(OP, tmp_path / "cache", shared()) as gate:
        report = gate.run(Candidate(OP.name, GOOD.replace(old, new), Origin("test")), problems)
    assert report.result.passed, report.result.message
    result = numeric.interpret(OP, list(report.artefacts), cache=tmp_path / "linked")
    assert result.code == "numeric.error", result.message
    page = shown(of_failure(result))
    assert all(word in page for word in words), page
