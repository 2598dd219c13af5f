"""The promoted kernels of this repository: whole, proven under today's rules, and what their sources still give."""

from support.checkout import ROOT

from kgen.cli import boundary
from kgen.cli.app import build
from kgen.cli.sets import current
from kgen.ops import REGISTRY
from kgen.promotion import verify
from kgen.promotion.verify import Outcome
from kgen.store.kernelset import KernelSet
from kgen.store.paths import SetPath

SET = ROOT / "generated_kernels"


def test_every_promotion_is_whole_and_fresh() -> None:
    # an op's file belongs to its contract: an edit, be it of a comment, makes the evidence of its kernels stale
    report = verify(SetPath(SET), current())
    assert report.ok and [f for f in report.findings if f.outcome in (Outcome.STALE, Outcome.BAD)] == []


def test_moe_shared_is_promoted_at_every_served_point_and_never_slower() -> None:
    op, manifest = REGISTRY.get("moe_shared"), KernelSet(SET).manifest()
    for dims in op.pack.served:
        for tokens in op.pack.bins:
            key = op.problem(dims, tokens, "sm_90a").key
            champion = manifest.champion(key)
            assert champion is not None and champion.labels[key] == "win", key


def test_the_sources_rebuild_to_the_stored_objects() -> None:
    assert boundary.run(build(), ["verify", "--set", str(SET)]) == boundary.OK
