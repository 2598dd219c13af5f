"""What is promoted, what is refused, and what a promotion leaves behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.limits import read_only
from support.sets import (
    ARCH,
    CONTRACT,
    CURRENT,
    DIMS,
    KEY,
    LEFT,
    OP,
    TIE,
    WIN,
    environment,
    fill,
    make_case,
    point,
    problem,
    promoted,
    results,
)

from kgen.promotion import Case, Current, Refused, promote, rollback, stale_promotions, status
from kgen.promotion.promote import MAX_SET_BYTES
from kgen.records import GateResult, Status, Verdict
from kgen.store import IntegrityError, KernelSet, SetPath, StoreError
from kgen.store.signing import sign

T1, T8 = problem(1).key, problem(8).key


@pytest.fixture
def target(tmp_path: Path) -> SetPath:
    return SetPath(tmp_path / "set")


def resigned(case: Case, **changes: object) -> Case:
    """The case with changed evidence, signed by the owner: only the change itself is wrong."""
    return replace(case, evidence=sign(replace(case.evidence.evidence, **changes), KEY))  # type: ignore[arg-type]


def test_a_good_case_becomes_champion_of_its_points(target: SetPath) -> None:
    case = make_case(ratios={1: WIN, 8: TIE, 16: LEFT})
    promotion = promoted(target, case)
    manifest = KernelSet(target.path).manifest()
    assert promotion.seq == manifest.seq == 1
    assert dict(promotion.labels) == {T1: "win", T8: "tie"}
    assert manifest.champions == {T1: 1, T8: 1}
    assert promotion.trust == "own-key"
    assert promotion.launches[T1] == {case.builds[0].launches[0].kernel: 1}
    assert [line["event"] for line in manifest.history] == ["promote"]


def test_objects_of_points_that_left_are_not_stored(target: SetPath) -> None:
    case = make_case(ratios={1: WIN, 16: LEFT})
    promoted(target, case)
    stored = {p.name for p in (target.path / "objects").iterdir()}
    assert stored == {f"{case.builds[0].object_sha256}.o.xz"}


def test_one_point_that_left_takes_its_whole_bin_along(target: SetPath) -> None:
    case = make_case(ratios={1: WIN, 16: WIN})
    points = (*case.evidence.evidence.points, point(problem(16), LEFT, tokens=12))
    assert set(promoted(target, resigned(case, points=points)).objects) == {T1}


def test_a_tie_anywhere_makes_the_bin_a_tie(target: SetPath) -> None:
    case = make_case(ratios={1: WIN, 16: WIN})
    points = (*case.evidence.evidence.points, point(problem(16), TIE, tokens=12))
    assert promoted(target, resigned(case, points=points)).labels[problem(16).key] == "tie"


@pytest.mark.parametrize(("column", "decides"), [("graph", True), ("cold", False), ("chained", False)])
def test_only_the_headline_column_decides(target: SetPath, column: str, decides: bool) -> None:
    case = make_case(ratios={1: WIN, 16: WIN})
    points = (*case.evidence.evidence.points, replace(point(problem(16), LEFT), column=column))
    assert set(promoted(target, resigned(case, points=points)).objects) == ({T1} if decides else {T1, problem(16).key})


def test_a_point_without_headline_column_is_not_promoted(target: SetPath) -> None:
    case = make_case(ratios={1: WIN, 16: WIN})
    first, second = case.evidence.evidence.points
    promotion = promoted(target, resigned(case, points=(first, replace(second, column="cold"))))
    assert set(promotion.objects) == {T1}


def test_the_next_promotion_takes_only_its_own_points(target: SetPath) -> None:
    fill(target.path, make_case("one"), make_case("two", {1: WIN}))
    manifest = KernelSet(target.path).manifest()
    assert manifest.champions == {T1: 2, T8: 1}
    assert manifest.promotions[1].previous == {T1: 1}


def test_the_same_case_again_changes_nothing(target: SetPath) -> None:
    first = promoted(target, make_case())
    before = (target.path / "manifest.json").read_bytes()
    assert promoted(target, make_case()) == first
    assert (target.path / "manifest.json").read_bytes() == before


def test_new_evidence_for_a_promoted_kernel_keeps_the_old_evidence(target: SetPath) -> None:
    promoted(target, make_case())
    promoted(target, make_case(raw=b"other samples"))
    kernels = KernelSet(target.path)
    first, second = kernels.manifest().promotions
    assert first.source == second.source and first.evidence != second.evidence
    assert kernels.raw(first) != kernels.raw(second)
    assert kernels.evidence(first) != kernels.evidence(second)


NO_PASS = GateResult("perf-sweep", Status.SKIP, "gpu.none", "no GPU")


def unpassed(case: Case) -> Case:
    return replace(case, verdict=Verdict(case.candidate.id, (*results()[:3], NO_PASS)))


REFUSED: dict[str, tuple[str, Callable[[], Case]]] = {
    "a gate that was skipped": ("promote.verdict", lambda: unpassed(make_case())),
    "a gate without result": (
        "promote.verdict",
        lambda: replace(make_case(), verdict=Verdict(make_case().candidate.id, results()[:3])),
    ),
    "evidence without a pass": (
        "promote.evidence",
        lambda: resigned(make_case(), results=(*results()[1:3], NO_PASS)),
    ),
    "evidence of an older op contract": ("promote.stale", lambda: make_case(op_contract="d" * 64)),
    "evidence of an older gate contract": ("promote.stale", lambda: make_case(gate_contract=2)),
    "an op that does not exist": ("promote.stale", lambda: make_case(op="unheard_of")),
    "no measured point": ("promote.points", lambda: resigned(make_case(), points=())),
    "all points left": ("promote.points", lambda: make_case(ratios={1: LEFT, 8: LEFT})),
    "a bound that is no number": ("promote.points", lambda: make_case(ratios={1: float("nan")})),
    "ties only": ("promote.no-win", lambda: make_case(ratios={1: TIE})),
    "unsigned evidence": ("promote.trust", lambda: make_case(key=b"")),
    "evidence of another run's kit": ("promote.trust", lambda: make_case(key=b"x" * 32)),
    "a build without sandbox": (
        "promote.isolation",
        lambda: replace(make_case(), builds=tuple(replace(b, isolation="none") for b in make_case().builds)),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_insufficient_case_is_refused_and_nothing_is_written(target: SetPath, what: str) -> None:
    code, case = REFUSED[what]
    with pytest.raises(Refused) as caught:
        promoted(target, case())
    assert caught.value.code == code and "\n" not in str(caught.value)
    assert not target.path.exists()


def altered_evidence() -> Case:
    """Signed, then made better by hand."""
    case = make_case(ratios={1: LEFT})
    better = replace(case.evidence.evidence, points=(point(problem(1), WIN),))
    return replace(case, evidence=replace(case.evidence, evidence=better))


def test_evidence_altered_after_signing_is_not_the_owners(target: SetPath) -> None:
    with pytest.raises(Refused, match="--trust"):
        promoted(target, altered_evidence())


def other_object(case: Case) -> Case:
    return replace(case, builds=tuple(replace(b, object_sha256="e" * 64) for b in case.builds))


MISMATCHED: dict[str, Callable[[], Case]] = {
    "verdict about another candidate": lambda: replace(make_case(), verdict=make_case("other").verdict),
    "evidence about another candidate": lambda: replace(make_case(), evidence=make_case("other").evidence),
    "source that was changed": lambda: replace(
        make_case(), candidate=replace(make_case().candidate, source="# changed\n")
    ),
    "evidence made on another arch": lambda: resigned(make_case(), environment=environment("sm_103a")),
    "raw samples that were changed": lambda: replace(make_case(), raw=b"other"),
    "raw samples that are missing": lambda: replace(make_case(), raw=b""),
    "build record of another object": lambda: other_object(make_case()),
    "no build record": lambda: replace(make_case(), builds=()),
    "a deliberately broken build only": lambda: replace(
        make_case(), builds=tuple(replace(b, defect="tile_scale") for b in make_case().builds)
    ),
    "object that is missing": lambda: replace(make_case(), objects={}),
    "object with other bytes": lambda: replace(make_case(), objects=dict.fromkeys(make_case().objects, b"other bytes")),
    "label better than its number": lambda: resigned(
        make_case(), points=(replace(point(problem(1), LEFT), label="win"),)
    ),
    "text that no file can hold": lambda: replace(make_case(), evidence=replace(make_case().evidence, hmac="\ud800")),
    "gate of another gate contract": lambda: resigned(make_case(), results=results(7)[1:]),
}


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("what", MISMATCHED)
def test_parts_that_do_not_belong_together_are_an_integrity_error(target: SetPath, what: str, trust: bool) -> None:
    with pytest.raises(IntegrityError) as caught:
        promote(target, MISMATCHED[what](), CURRENT, KEY, trust=trust)
    assert "\n" not in str(caught.value)
    assert not target.path.exists()


@pytest.mark.parametrize("key", [b"", b"x" * 32])
def test_trust_promotes_foreign_evidence_and_says_so(target: SetPath, key: bytes) -> None:
    promotion = promote(target, make_case(key=key), CURRENT, KEY, trust=True)
    assert promotion.trust == "self-reported"
    kernels = KernelSet(target.path)
    assert kernels.manifest().history[0]["trust"] == "self-reported"
    assert status(kernels.manifest(), CURRENT)[0].trust == "self-reported"


def test_trust_does_not_lower_what_is_the_owners(target: SetPath) -> None:
    assert promote(target, make_case(), CURRENT, KEY, trust=True).trust == "own-key"


def test_a_champion_that_changed_since_the_measurement_supersedes_the_case(target: SetPath) -> None:
    case = replace(make_case("mine", {1: WIN}), against={})
    promoted(target, make_case("theirs", {1: WIN}))
    before = (target.path / "manifest.json").read_bytes()
    with pytest.raises(Refused) as caught:
        promoted(target, case)
    assert caught.value.code == "promote.superseded"
    assert (target.path / "manifest.json").read_bytes() == before
    champion = KernelSet(target.path).manifest().promotions[0].objects
    assert promoted(target, replace(case, against=champion)).seq == 2


def test_the_packaged_set_is_not_written(tmp_path: Path) -> None:
    builtin = SetPath(tmp_path / "set", writable=False)
    for write in (lambda: promoted(builtin, make_case()), lambda: rollback(builtin, OP)):
        with pytest.raises(StoreError, match="read-only"):
            write()
    assert not builtin.path.exists()


def test_a_set_without_write_permission_is_one_clear_error(target: SetPath) -> None:
    promoted(target, make_case())
    before = (target.path / "manifest.json").read_bytes()
    with read_only(target.path):
        with pytest.raises(StoreError, match="Permission denied"):
            promoted(target, make_case("two"))
        with pytest.raises(StoreError, match="Permission denied"):
            rollback(target, OP)
    assert (target.path / "manifest.json").read_bytes() == before


def test_a_set_never_outgrows_its_limit(target: SetPath) -> None:
    target.path.mkdir()
    with (target.path / "filler").open("wb") as filler:
        filler.truncate(MAX_SET_BYTES - 500)
    with pytest.raises(Refused, match="more than 24 MB") as caught:
        promoted(target, make_case())
    assert caught.value.code == "promote.size"
    assert sorted(p.name for p in target.path.iterdir()) == [".lock", "filler"]


def test_a_newer_manifest_is_refused_and_never_rewritten(target: SetPath) -> None:
    promoted(target, make_case())
    path = target.path / "manifest.json"
    newer = path.read_bytes().replace(b"kgen.manifest/1", b"kgen.manifest/2")
    path.write_bytes(newer)
    for write in (lambda: promoted(target, make_case("two")), lambda: rollback(target, OP)):
        with pytest.raises(IntegrityError, match="upgrade kgen"):
            write()
    assert path.read_bytes() == newer


def test_a_damaged_file_is_repaired_by_promoting_its_kernel_again(target: SetPath) -> None:
    case = make_case()
    promoted(target, case)
    rollback(target, OP)
    kernels = KernelSet(target.path)
    sha256 = case.builds[0].object_sha256
    kernels.object_path(sha256).write_bytes(b"damaged")
    promoted(target, case)
    assert kernels.object(sha256) == case.objects[sha256]


def test_an_object_packed_by_another_xz_stays_as_it_is(target: SetPath) -> None:
    import lzma

    case = make_case()
    sha256 = case.builds[0].object_sha256
    path = KernelSet(target.path).object_path(sha256)
    path.parent.mkdir(parents=True)
    path.write_bytes(lzma.compress(case.objects[sha256], preset=0, check=lzma.CHECK_CRC32))
    before = path.read_bytes()
    promoted(target, case)
    assert path.read_bytes() == before


def test_rollback_returns_to_what_served_before_and_then_to_the_stock_op(target: SetPath) -> None:
    fill(target.path, make_case("one"), make_case("two", {1: WIN}))
    first = rollback(target, OP)
    assert (first.undone.seq, first.now) == (2, {T1: 1})
    second = rollback(target, OP, ARCH)
    assert (second.undone.seq, second.now) == (1, {T1: 0, T8: 0})
    manifest = KernelSet(target.path).manifest()
    assert manifest.champions == {} and manifest.seq == 4 and len(manifest.promotions) == 2
    with pytest.raises(Refused, match="no promoted kernel"):
        rollback(target, OP)


def test_rollback_after_a_new_promotion_skips_what_was_undone(target: SetPath) -> None:
    fill(target.path, make_case("one", {1: WIN}), make_case("two", {1: WIN}))
    rollback(target, OP)
    promoted(target, make_case("three", {1: WIN}))
    assert rollback(target, OP).now == {T1: 1}


def test_rollback_leaves_other_archs_alone(target: SetPath) -> None:
    fill(target.path, make_case("one", {1: WIN}), make_case("two", {1: WIN}, arch="sm_103a"))
    assert rollback(target, OP, ARCH).undone.seq == 1
    assert KernelSet(target.path).manifest().champions == {problem(1, arch="sm_103a").key: 2}


def test_rollback_of_an_empty_set_writes_nothing(target: SetPath) -> None:
    with pytest.raises(Refused, match="nothing to roll back"):
        rollback(target, OP)
    assert not target.path.exists()


def test_status_shows_each_served_point_and_what_is_stale(target: SetPath) -> None:
    promoted(target, make_case())
    rows = status(KernelSet(target.path).manifest(), CURRENT)
    assert [(r.op, r.arch, r.dims, r.tokens, r.label, r.seq, r.stale) for r in rows] == [
        (OP, ARCH, DIMS, 1, "win", 1, ""),
        (OP, ARCH, DIMS, 8, "tie", 1, ""),
    ]
    later = status(KernelSet(target.path).manifest(), Current({OP: CONTRACT}, 2))
    assert all("gate contract 1, now 2" in r.stale for r in later)
    (old,) = stale_promotions(later)
    assert (old.seq, old.op, old.arch, old.points) == (1, OP, ARCH, 2) and "gate contract 1, now 2" in old.reason
    assert stale_promotions(rows) == ()
