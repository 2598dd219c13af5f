"""What promotion and `verify` decide in their corners: who is a rival, what has to be on the medium, what is damage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.sets import COMPILER, CURRENT, KEY, OP, TIE, WIN, build, fill, make_case, problem

from kgen.gates.compile import same_code
from kgen.promotion import Case, Outcome, Rebuilder, Refused, VerifyReport, promote, verify
from kgen.promotion.champions import champions, same_kernel
from kgen.promotion.gather import gather
from kgen.records import BuildRecord, Candidate, Evidence, Origin, Problem, Status, sha256_bytes
from kgen.store import IntegrityError, KernelSet, SetPath
from kgen.store.cache import Blobs
from kgen.store.documents import json_bytes
from kgen.store.durable import TEMP_PREFIX, Durable
from kgen.store.kernelset import manifest_bytes
from kgen.store.runs import Runs
from kgen.store.signing import sign

CASE = make_case("one", {1: WIN, 8: TIE})


@pytest.fixture
def target(tmp_path: Path) -> SetPath:
    return fill(tmp_path / "set", CASE)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def reseal(target: SetPath, **changes: object) -> None:
    """The only promotion with changes, under a fitting checksum: what a forger would do."""
    manifest = KernelSet(target.path).manifest()
    (only,) = manifest.promotions
    changed = replace(only, **changes)  # type: ignore[arg-type]
    (target.path / "manifest.json").write_bytes(manifest_bytes(replace(manifest, promotions=(changed,))))


def other_evidence(target: SetPath, evidence: Evidence) -> None:
    """Evidence in the place of the promoted one, signed, with its hash in the manifest."""
    data = json_bytes(sign(evidence, KEY))
    (only,) = KernelSet(target.path).manifest().promotions
    (target.path / only.evidence).write_bytes(data)
    reseal(target, evidence_sha256=sha256_bytes(data))


def messages(report: VerifyReport, outcome: Outcome) -> dict[str, str]:
    return {f.check: f.message for f in report.findings if f.outcome is outcome}


def test_a_good_set_is_described_check_by_check(target: SetPath) -> None:
    report = verify(target, CURRENT)
    total = sum(len(data) for data in CASE.objects.values())
    stem = f"{OP}/{CASE.candidate.id[:12]}"
    assert messages(report, Outcome.OK) == {
        "manifest": "seq 1, 1 promotions",
        "source": f"{stem}.py is the candidate",
        "evidence": "2 points on NVIDIA H200, own-key",
        "objects": f"2 objects, {total} bytes",
        "builds": "2 build records",
        "fresh": "judged by today's rules",
    }
    assert {f.subject for f in report.findings[1:]} == {f"#1 {OP} {CASE.candidate.id[:12]} sm_90a"}


@pytest.mark.parametrize(
    ("field", "value"), [("run", "another"), ("op_contract", "d" * 64), ("gate_contract", 7), ("candidate", "f" * 64)]
)
def test_a_promotion_that_says_more_than_its_evidence_is_bad(target: SetPath, field: str, value: object) -> None:
    reseal(target, **{field: value})
    assert messages(verify(target, CURRENT), Outcome.BAD)["evidence"].endswith(
        f"has another {field} than the promotion"
    )


def test_unsigned_evidence_is_fine_for_a_self_reported_promotion_only(tmp_path: Path) -> None:
    target = fill(tmp_path / "set", make_case("foreign", key=b""))
    assert verify(target, CURRENT).ok
    reseal(target, trust="own-key")
    assert "is unsigned, but was promoted" in messages(verify(target, CURRENT), Outcome.BAD)["evidence"]


@pytest.mark.parametrize("gate", ["unit-numeric", "full-model-eval", "perf-sweep"])
@pytest.mark.parametrize("left", [False, True])
def test_evidence_without_a_pass_of_a_gate_is_bad(target: SetPath, gate: str, left: bool) -> None:
    evidence = CASE.evidence.evidence
    results = [replace(r, status=Status.FAIL) if r.gate == gate and not left else r for r in evidence.results]
    other_evidence(target, replace(evidence, results=tuple(r for r in results if r.gate != gate or not left)))
    assert messages(verify(target, CURRENT), Outcome.BAD)["evidence"].endswith(f"holds no pass of {gate}")


def test_build_records_of_fewer_points_than_were_promoted_are_bad(target: SetPath) -> None:
    (only,) = KernelSet(target.path).manifest().promotions
    data = json_bytes(CASE.builds[:1])
    (target.path / only.builds).write_bytes(data)
    reseal(target, builds_sha256=sha256_bytes(data))
    assert "do not cover the promoted points" in messages(verify(target, CURRENT), Outcome.BAD)["builds"]


def test_without_build_records_a_rebuild_is_skipped_and_there_is_no_rival(target: SetPath, blobs: Blobs) -> None:
    reseal(target, builds="", builds_sha256="")

    def never(_: Candidate, __: tuple[Problem, ...]) -> tuple[BuildRecord, ...]:
        raise AssertionError("nothing to compare with")

    report = verify(target, CURRENT, Rebuilder(COMPILER, never, same_code))
    said = "built with an unknown compiler, here is 4.8.1 (cu12)"
    assert messages(report, Outcome.SKIP) == {"rebuild": said}
    newer = build(Candidate(OP, "# new\n", Origin("test")), problem(1), b"new")
    assert champions(target.path, [newer], blobs) == ()


def test_a_planted_defect_has_no_rival(target: SetPath, blobs: Blobs) -> None:
    honest = build(Candidate(OP, "# new\n", Origin("test")), problem(1), b"new")
    assert champions(target.path, [replace(honest, defect="tile_scale")], blobs) == ()
    assert len(champions(target.path, [honest], blobs)) == 1


def test_the_very_object_in_place_is_no_rival_whoever_wrote_it(target: SetPath, blobs: Blobs) -> None:
    copied = replace(CASE.builds[0], candidate="d" * 64)
    assert champions(target.path, [copied], blobs) == ()


def test_another_source_with_the_same_machine_code_is_a_rival() -> None:
    copied = replace(CASE.builds[0], candidate="d" * 64, object_sha256="e" * 64)
    assert same_kernel(CASE.builds[0], replace(copied, candidate=CASE.candidate.id))
    assert not same_kernel(CASE.builds[0], copied)


def test_a_case_is_gathered_once_there_are_a_verdict_and_evidence(tmp_path: Path, blobs: Blobs) -> None:
    """Only objects that the evidence names are read: others need not be in the cache any more."""
    folder = Runs(tmp_path / "runs").create(OP, "test", "0", {}).add(CASE.candidate)
    unmeasured = build(CASE.candidate, problem(64), b"not in the cache")
    folder.write_builds((*CASE.builds, unmeasured))
    for data in CASE.objects.values():
        blobs.put(data, ".o")
    with pytest.raises(Refused, match="has no verdict yet: kgen resume") as early:
        gather(folder, blobs)
    assert early.value.code == "promote.verdict"
    folder.write_verdict(CASE.verdict)
    with pytest.raises(Refused, match="has no evidence from a GPU yet") as unmeasured_yet:
        gather(folder, blobs)
    assert unmeasured_yet.value.code == "promote.evidence"
    folder.write("evidence.json", json_bytes(CASE.evidence))
    found = gather(folder, blobs)
    assert found.objects == CASE.objects and found.raw == b"" and found.builds == (*CASE.builds, unmeasured)


def with_dims(case: Case, dims: str) -> Case:
    """The case's points under other dims, signed."""
    builds = tuple(replace(b, problem=replace(b.problem, dims=dims)) for b in case.builds)
    keys = {old.problem.key: new.problem.key for old, new in zip(case.builds, builds, strict=True)}
    evidence = case.evidence.evidence
    moved = replace(
        evidence,
        points=tuple(replace(p, problem=keys[p.problem]) for p in evidence.points),
        objects={keys[k]: v for k, v in evidence.objects.items()},
    )
    return replace(case, builds=builds, evidence=sign(moved, KEY))


def test_points_that_no_manifest_can_name_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    target = SetPath(tmp_path / "set")
    with pytest.raises(IntegrityError, match="the case contradicts itself: promotion #1"):
        promote(target, with_dims(CASE, "two/parts"), CURRENT, KEY)
    assert [p.name for p in target.path.rglob("*")] == [".lock"]


@contextmanager
def synced(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that reach the medium meanwhile, in order."""
    seen: list[str] = []
    real = os.fsync

    def noted(handle: int) -> None:
        real(handle)
        seen.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    with patch.context() as here:
        here.setattr(os, "fsync", noted)
        yield seen


def test_what_a_dead_promoter_left_is_on_the_medium_before_a_manifest_names_it(
    target: SetPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are whole and stay as they are; but nobody knows whether their names would survive a power cut."""
    (target.path / "manifest.json").unlink()
    with synced(monkeypatch) as seen:
        promote(target, CASE, CURRENT, KEY, durable=Durable())
    number = next(n for n, path in enumerate(seen) if Path(path).name.startswith(f"{TEMP_PREFIX}manifest.json"))
    assert {str(target.path), str(target.path / OP), str(target.path / "objects")} <= set(seen[:number])


def test_a_promotion_that_is_there_already_is_on_the_medium_when_promote_returns(
    target: SetPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with synced(monkeypatch) as seen:
        assert promote(target, CASE, CURRENT, KEY, durable=Durable()).seq == 1
    assert str(target.path) in seen
