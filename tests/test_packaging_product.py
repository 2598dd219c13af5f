"""The promoted kernels of this repository: whole, proven under today's rules, and what their sources still give."""

from pathlib import Path

import pytest
from support.builds import shared
from support.committed import SET

from kgen.cli import boundary
from kgen.cli.app import build
from kgen.cli.sets import current
from kgen.gates.compile import CompileGate, compiler, same_code
from kgen.ops import REGISTRY
from kgen.promotion import status, verify
from kgen.promotion.verify import Outcome
from kgen.records import Candidate, Origin
from kgen.store.kernelset import KernelSet
from kgen.store.paths import SetPath


def test_every_promotion_is_whole() -> None:
    report = verify(SetPath(SET), current())
    assert report.ok and [f for f in report.findings if f.outcome is Outcome.BAD] == []


def test_what_serves_was_proven_by_today_s_rules() -> None:
    # an op's file belongs to its contract: an edit, be it of a comment, makes the evidence of its kernels stale
    reasons = {row.stale for row in status(KernelSet(SET).manifest(), current())} - {""}
    assert [r for r in reasons if "gate contract" not in r] == []
    if reasons:  # the rules are newer than the evidence: `kgen status` says so, and only a GPU can change it
        pytest.skip(f"to be measured again: {', '.join(reasons)}")


def test_moe_shared_is_promoted_at_every_served_point_and_never_slower() -> None:
    op, manifest = REGISTRY.get("moe_shared"), KernelSet(SET).manifest()
    for dims in op.pack.served:
        for tokens in op.pack.bins:
            key = op.problem(dims, tokens, "sm_90a").key
            champion = manifest.champion(key)
            assert champion is not None and champion.labels[key] == "win", key


MANIFEST = KernelSet(SET).manifest()
SERVING = [p for p in MANIFEST.promotions if p.seq in set(MANIFEST.champions.values())]


@pytest.mark.parametrize("at", range(len(SERVING)), ids=lambda at: f"{SERVING[at].op} {SERVING[at].candidate[:12]}")
def test_a_source_rebuilds_to_its_stored_object(at: int, tmp_path: Path) -> None:
    """One point each, a narrow, a middle or a wide one by turns; the deep test takes all points, and as `verify` does,
    which starts a builder for each source (test_promotion_rebuild.py)."""
    kernels, promotion = KernelSet(SET), SERVING[at]
    recorded = sorted(kernels.builds(promotion), key=lambda b: (b.problem.tokens, b.problem.key))
    chosen = recorded[(0, len(recorded) // 2, -1)[at % 3]]
    if chosen.compiler != compiler():
        pytest.skip("another compiler release than that of the promotion")
    candidate = Candidate(promotion.op, kernels.source(promotion), Origin("promoted"))
    with CompileGate(REGISTRY.get(promotion.op), tmp_path, shared()) as gate:
        report = gate.run(candidate, (chosen.problem,))
    assert report.result.passed, report.result.message
    assert [same_code(chosen, a.record) for a in report.artefacts] == [""]


@pytest.mark.deep
def test_the_sources_rebuild_to_all_stored_objects() -> None:
    assert boundary.run(build(), ["verify", "--set", str(SET)]) == boundary.OK
