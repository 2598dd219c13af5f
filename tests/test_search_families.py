"""The search proposer: deterministic, distinct, adaptive; and its templates go through the real compile gate."""

import random
from pathlib import Path

import pytest
from support.builds import shared

from kgen.gates.compile import CompileGate
from kgen.gates.screen import screen
from kgen.ops import REGISTRY
from kgen.proposers.base import ProposalRequest, ProposerExhausted, SetupError
from kgen.proposers.families import FAMILIES, Variant, render
from kgen.proposers.families.gated import TOKEN_RANGES, fits
from kgen.proposers.search import SearchProposer
from kgen.records import Candidate, Origin, PerfPoint, Status, Verdict

OP = REGISTRY.get("moe_shared")


def request(op: str = "moe_shared", count: int = 24, seed: int = 0, **more) -> ProposalRequest:
    return ProposalRequest(
        op=REGISTRY.get(op), problems=(), archs=("sm_90a",), run=Path("unused"), count=count, seed=seed, **more
    )


def ids(candidates) -> list[str]:
    return [c.id for c in candidates]


def test_two_dozen_distinct_candidates_of_every_kind() -> None:
    found = list(SearchProposer().propose(request()))
    assert len(set(ids(found))) == 24
    sources = [c.source for c in found]
    assert any("class OneKernel" in s for s in sources)
    assert any("class TwoKernels" in s and "class Tiles" in s for s in sources)
    assert any("class Dot" in s for s in sources)
    assert {s.count(", True)") > 0 or "PDL = " in s for s in sources} == {True, False}


def test_the_same_seed_gives_the_same_candidates_and_another_seed_others() -> None:
    first, again, other = (ids(SearchProposer().propose(request(seed=s))) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_known_good_points_come_first() -> None:
    for family in FAMILIES.values():
        found = list(SearchProposer().propose(request(family.op, count=len(family.known))))
        assert [c.source for c in found] == [render(v) for v in family.known]


def test_a_later_round_repeats_nothing() -> None:
    first = list(SearchProposer().propose(request(count=10)))
    history = tuple((c, Verdict(c.id, ())) for c in first)
    second = list(SearchProposer().propose(request(count=10, history=history)))
    assert not set(ids(first)) & set(ids(second))


def test_after_timing_new_candidates_change_one_choice_of_the_best() -> None:
    first = list(SearchProposer().propose(request(count=8)))
    history = tuple((c, Verdict(c.id, ())) for c in first)
    best = first[0]
    points = {c.id: (timed(0.5 if c is best else 0.9),) for c in first}
    found = SearchProposer().propose(request(count=8, history=history, points=points))
    near = [c for c in found if differences(best, c) == 1]
    assert len(near) >= 3


def differences(a: Candidate, b: Candidate) -> int:
    """In how many values two candidates of one template differ (-1: other templates)."""
    if a.origin.detail["template"] != b.origin.detail["template"]:
        return -1
    left, right = a.origin.detail["values"], b.origin.detail["values"]
    return sum(left[k] != right[k] for k in left)


def timed(ratio: float) -> PerfPoint:
    return PerfPoint("p", 1, "graph", "t", 1.0, {"stock": 1.0}, "stock", ratio, ratio, ratio, 0.5, 1.0, 3, "win")


def test_a_searched_space_says_so_and_then_ends() -> None:
    found = SearchProposer().propose(request("attn_res", count=1000))
    assert 0 < len(found) < 1000
    assert "new points left" in found.note
    history = tuple((c, Verdict(c.id, ())) for c in found)
    with pytest.raises(ProposerExhausted):
        SearchProposer().propose(request("attn_res", history=history))


def test_an_op_without_a_family_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FAMILIES, "attn_res")
    with pytest.raises(SetupError, match="no kernel family for attn_res"):
        SearchProposer().propose(request("attn_res"))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.deep) for n in (1, 2, 3))])
def test_every_sample_passes_the_screen_and_is_of_readable_size(seed: int) -> None:
    rng = random.Random(seed)
    for family in FAMILIES.values():
        for _ in range(6):
            source = render(family.sample(rng))
            assert screen(source) == []
            assert source.count("\n") <= 400


@pytest.mark.parametrize("seed", range(20))
def test_sampled_rows_fit_shared_memory(seed: int) -> None:
    variant = FAMILIES["moe_shared"].sample(random.Random(seed))
    for (most, _, row), tokens in zip(variant.values.get("tuning", ()), TOKEN_RANGES, strict=False):
        assert most == tokens
        assert fits(row, tokens)


def first_of(kind: str) -> Variant:
    rng = random.Random(5)
    while True:
        variant = FAMILIES["moe_shared"].sample(rng)
        if kind in render(variant):
            return variant


@pytest.mark.parametrize("kind", ["class OneKernel", "class TwoKernels", "class Dot"])
def test_each_kind_of_moe_shared_compiles_small(kind: str, tmp_path: Path) -> None:
    candidate = Candidate("moe_shared", render(first_of(kind)), Origin("test"))
    problems = [OP.problem("nano", tokens, "sm_90a") for tokens in (1, 16)]
    with CompileGate(OP, tmp_path, shared()) as gate:
        report = gate.run(candidate, problems)
    assert report.result.status is Status.PASS, report.result.message
    launches = [len(a.record.launches) for a in report.artefacts]
    assert launches == [1, 1] if kind == "class OneKernel" else [2, 2]


def test_attn_res_compiles_in_every_variant(tmp_path: Path) -> None:
    op = REGISTRY.get("attn_res")
    candidate = Candidate("attn_res", render(FAMILIES["attn_res"].known[0]), Origin("test"))
    problems = [op.problem("nano", 3, "sm_90a", {"variant": v}) for v in op.axes["variant"]]
    with CompileGate(op, tmp_path, shared()) as gate:
        report = gate.run(candidate, problems)
    assert report.result.status is Status.PASS, report.result.message


def test_the_known_moe_shared_point_builds_for_both_archs_at_served_dims(tmp_path: Path) -> None:
    candidate = Candidate("moe_shared", render(FAMILIES["moe_shared"].known[0]), Origin("test"))
    problems = [OP.problem(OP.pack.served[0], 1, arch) for arch in ("sm_90a", "sm_103a")]
    with CompileGate(OP, tmp_path, shared()) as gate:
        report = gate.run(candidate, problems)
    assert report.result.status is Status.PASS, report.result.message
    assert all(k.stack_bytes == 0 for a in report.artefacts for k in a.record.kernels)
