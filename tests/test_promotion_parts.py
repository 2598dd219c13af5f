"""Parts of a case for promotion that do not belong together, champions that changed, and what stays of files."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.sets import (
    CURRENT,
    KEY,
    OP,
    WIN,
    fill,
    make_case,
    problem,
    promoted,
    results,
)

from kgen.promotion import Case, Refused, promote, rollback
from kgen.promotion.promote import MAX_SET_BYTES
from kgen.records import GateResult, Status, Verdict
from kgen.store import IntegrityError, KernelSet, SetPath
from kgen.store.durable import TEMP_PREFIX
from kgen.store.kernelset import manifest_bytes
from kgen.store.signing import sign

T1, T8 = problem(1).key, problem(8).key
NO_PASS = GateResult("perf-sweep", Status.SKIP, "gpu.none", "no GPU")


@pytest.fixture
def target(tmp_path: Path) -> SetPath:
    return SetPath(tmp_path / "set")


def resigned(case: Case, **changes: object) -> Case:
    """The case with changed evidence, signed by the owner: only the change itself is wrong."""
    return replace(case, evidence=sign(replace(case.evidence.evidence, **changes), KEY))  # type: ignore[arg-type]


def other_object(case: Case) -> Case:
    return replace(case, builds=tuple(replace(b, object_sha256="e" * 64) for b in case.builds))


def unpassed(case: Case) -> Case:
    return replace(case, verdict=Verdict(case.candidate.id, (*results()[:3], NO_PASS)))


def moved(case: Case, **problem_changes: str) -> Case:
    """The case's points, objects and builds under other problems, signed; the evidence says what it said."""
    builds = tuple(replace(b, problem=replace(b.problem, **problem_changes)) for b in case.builds)  # type: ignore[arg-type]
    keys = {old.problem.key: new.problem.key for old, new in zip(case.builds, builds, strict=True)}
    evidence = case.evidence.evidence
    points = tuple(replace(p, problem=keys[p.problem]) for p in evidence.points)
    objects = {keys[k]: v for k, v in evidence.objects.items()}
    return replace(resigned(case, points=points, objects=objects), builds=builds)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (
            lambda: resigned(make_case(), op="attn_res"),
            "the evidence is about attn_res, the candidate about moe_shared",
        ),
        (
            lambda: replace(make_case(), evidence=replace(make_case().evidence, run="other")),
            "abc123, its envelope says other",
        ),
        (
            lambda: moved(make_case(), arch="sm_103a"),
            "moe_shared/nano/t1/sm_103a is not a point of moe_shared on sm_90a",
        ),
        (lambda: moved(make_case(), op="attn_res"), "attn_res/nano/t1/sm_90a is not a point of moe_shared on sm_90a"),
        (
            lambda: replace(make_case(), builds=tuple(replace(b, candidate="e" * 64) for b in make_case().builds)),
            "the object that was measured is not the one in the build record",
        ),
        (lambda: other_object(make_case()), "the object that was measured is not the one in the build record"),
        (lambda: replace(make_case(), builds=make_case().builds[:1]), f"{T8}: measured, but there is no build record"),
    ],
)
def test_a_part_of_something_else_is_named(target: SetPath, case: Callable[[], Case], says: str) -> None:
    with pytest.raises(IntegrityError, match=says):
        promoted(target, case())


def interpreted(gate: str) -> tuple[GateResult, ...]:
    return tuple(replace(r, evidence={"device": "ptx"}) if r.gate == gate else r for r in results())


def test_a_pass_of_the_interpreter_promotes_nothing_wherever_it_stands(target: SetPath) -> None:
    case = make_case()
    said = replace(case, verdict=Verdict(case.candidate.id, interpreted("unit-numeric")))
    for each, code in (
        (said, "promote.verdict"),
        (resigned(case, results=interpreted("unit-numeric")[1:]), "promote.evidence"),
    ):
        with pytest.raises(Refused) as caught:
            promoted(target, each)
        assert caught.value.code == code


@pytest.mark.parametrize("gate", ["unit-numeric", "full-model-eval", "perf-sweep"])
def test_each_gate_that_needs_a_gpu_must_be_in_the_evidence(target: SetPath, gate: str) -> None:
    kept = tuple(r for r in results()[1:] if r.gate != gate)
    with pytest.raises(Refused, match=f"the evidence holds no pass of {gate}"):
        promoted(target, resigned(make_case(), results=kept))


def test_a_refusal_says_what_there_is_of_a_gate(target: SetPath) -> None:
    with pytest.raises(Refused, match=r"perf-sweep is not passed \(skip: no GPU\)"):
        promoted(target, unpassed(make_case()))
    missing = replace(make_case(), verdict=Verdict(make_case().candidate.id, results()[:3]))
    with pytest.raises(Refused, match=r"perf-sweep is not passed \(no result\)"):
        promoted(target, missing)


@pytest.mark.parametrize("isolation", ["", "none", "unsafe", "none/1", "unsafe/bwrap", "/1"])
def test_a_build_outside_of_a_sandbox_is_refused(target: SetPath, isolation: str) -> None:
    case = make_case()
    with pytest.raises(Refused, match="built without a sandbox"):
        promoted(target, replace(case, builds=tuple(replace(b, isolation=isolation) for b in case.builds)))


def test_the_level_of_a_sandbox_is_no_name_of_one(target: SetPath) -> None:
    case = make_case()
    assert promoted(target, replace(case, builds=tuple(replace(b, isolation="ns/none") for b in case.builds))).seq == 1


def test_broken_builds_beside_the_good_ones_are_passed_over(target: SetPath) -> None:
    case = make_case()
    broken = tuple(replace(b, defect="tile_scale", object_sha256="e" * 64) for b in case.builds)
    promotion = promoted(target, replace(case, builds=(*broken, *case.builds, *broken)))
    assert dict(promotion.objects) == {b.problem.key: b.object_sha256 for b in case.builds}


def test_a_point_whose_object_was_not_run_is_not_promoted(target: SetPath) -> None:
    case = make_case(ratios={1: WIN, 16: WIN})
    evidence = case.evidence.evidence
    objects = {k: v for k, v in evidence.objects.items() if k == T1}
    assert set(promoted(target, resigned(case, objects=objects)).objects) == {T1}


def test_what_a_promotion_leaves_behind_is_named_and_complete(target: SetPath) -> None:
    case = make_case()
    first = promoted(target, case)
    stem = f"moe_shared/{case.candidate.id[:12]}"
    assert (first.source, first.evidence, first.builds, first.raw) == tuple(
        f"{stem}.{kind}" for kind in ("py", "evidence.json", "builds.json", "raw.json.xz")
    )
    assert dict(first.previous) == {T1: 0, T8: 0}
    assert (target.path / first.source).read_text() == case.candidate.source
    assert (target.path / first.raw).read_bytes() == case.raw
    again = promoted(target, make_case(raw=b"other samples"))
    assert (again.source, again.evidence, again.builds, again.raw) == (
        f"{stem}.py", f"{stem}.2.evidence.json", f"{stem}.builds.json", f"{stem}.2.raw.json.xz",
    )  # fmt: skip
    assert dict(again.previous) == {T1: 1, T8: 1}
    bare = promoted(target, make_case("bare", raw=b""))
    assert bare.raw == "" and bare.seq == 3


def test_a_kernel_that_lost_one_of_its_points_is_promoted_anew(target: SetPath) -> None:
    case = make_case("one")
    fill(target.path, case, make_case("two", {8: WIN}))
    assert promoted(target, case).seq == 3
    assert KernelSet(target.path).manifest().champions == {T1: 3, T8: 3}
    assert promoted(target, case).seq == 3
    kernels = KernelSet(target.path)
    first, third = kernels.manifest().promotions[0], kernels.manifest().promotions[2]
    assert (third.evidence, third.raw, third.builds) == (first.evidence, first.raw, first.builds), "the same bytes"


def test_a_case_that_may_claim_something_else_now_is_another_promotion(target: SetPath) -> None:
    first = replace(promoted(target, make_case()), labels={T1: "win", T8: "win"})  # as under other limits
    manifest = replace(KernelSet(target.path).manifest(), promotions=(first,))
    (target.path / "manifest.json").write_bytes(manifest_bytes(manifest))
    assert promoted(target, make_case()).seq == 2


def test_files_that_are_there_and_whole_are_not_written_again(target: SetPath) -> None:
    case = make_case("one")
    promoted(target, case)
    before = {p: p.stat().st_ino for p in target.path.rglob("*") if p.is_file() and p.name != "manifest.json"}
    promoted(target, make_case("two", {8: WIN}))
    assert promoted(target, case).seq == 3
    assert {p: p.stat().st_ino for p in before} == before


def test_other_evidence_or_another_owner_is_another_promotion(target: SetPath) -> None:
    assert promote(target, make_case(), CURRENT, b"", trust=True).trust == "self-reported"
    own = promoted(target, make_case())
    assert (own.seq, own.trust) == (2, "own-key")
    assert promote(target, make_case(), CURRENT, b"", trust=True).seq == 3


@pytest.mark.parametrize(
    ("against", "says"),
    [
        (lambda theirs, mine: {T1: theirs}, ""),
        (lambda theirs, mine: None, ""),
        (lambda theirs, mine: {}, f"another champion: #1 serves {T1} now"),
        (lambda theirs, mine: {T1: mine}, f"another champion: #1 serves {T1} now"),
    ],
)
def test_only_the_champion_that_was_beaten_is_displaced(
    target: SetPath, against: Callable[[str, str], dict[str, str] | None], says: str
) -> None:
    theirs, mine = make_case("theirs", {1: WIN}), make_case("mine", {1: WIN})
    promoted(target, theirs)
    case = replace(mine, against=against(theirs.builds[0].object_sha256, mine.builds[0].object_sha256))
    if says:
        with pytest.raises(Refused, match=says):
            promoted(target, case)
    else:
        assert promoted(target, case).seq == 2


def test_a_champion_that_is_gone_supersedes_and_the_same_object_does_not(target: SetPath) -> None:
    case = make_case("mine", {1: WIN})
    with pytest.raises(Refused, match=f"{T1} is served by the stock op now"):
        promoted(target, replace(case, against={T1: "e" * 64}))
    promoted(target, case)
    other = make_case("mine", {1: WIN}, raw=b"measured again")
    assert promoted(target, replace(other, against={})).seq == 2, "its own object serves"


def test_a_set_is_full_to_the_byte(target: SetPath, tmp_path: Path) -> None:
    probe = SetPath(tmp_path / "probe")
    promoted(probe, make_case())
    size = sum(p.stat().st_size for p in probe.path.rglob("*") if p.is_file() and p.name != "manifest.json")
    (target.path / "folder").mkdir(parents=True)
    with (target.path / "folder" / "filler").open("wb") as filler:
        filler.truncate(MAX_SET_BYTES - size + 1)
    with pytest.raises(Refused, match=r"would hold 24\.0 MB"):
        promoted(target, make_case())
    with (target.path / "folder" / "filler").open("wb") as filler:
        filler.truncate(MAX_SET_BYTES - size)
    (target.path / f"{TEMP_PREFIX}1-abc").write_bytes(b"being written by nobody yet")
    assert promoted(target, make_case()).seq == 1


def test_what_a_killed_promoter_left_is_swept_away(target: SetPath) -> None:
    promoted(target, make_case())
    leftover = target.path / f"{TEMP_PREFIX}0-abc"
    leftover.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    promoted(target, make_case("two"))
    assert not leftover.exists()


def test_a_file_that_cannot_be_read_counts_as_damaged(target: SetPath) -> None:
    case = make_case()
    promoted(target, case)
    rollback(target, OP)
    source = target.path / KernelSet(target.path).manifest().promotions[0].source
    source.write_text("changed")
    promoted(target, case)
    assert source.read_text() == case.candidate.source


def test_a_file_whose_bytes_cannot_be_read_is_replaced(target: SetPath) -> None:
    case = make_case()
    source = target.path / promoted(target, case).source
    rollback(target, OP)
    source.unlink()
    source.symlink_to("/proc/self/mem")  # a file that no one can read from its start
    promoted(target, case)
    assert not source.is_symlink() and source.read_text() == case.candidate.source
