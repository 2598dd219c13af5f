"""`verify` finds damage of every kind, shows what is stale, and compares a rebuild; it never writes."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sets import CONTRACT, CURRENT, KEY, OP, TIE, WIN, build, fill, make_case, problem

from kgen.gates.compile import same_code
from kgen.promotion import Current, Outcome, Rebuilder, RebuildUnavailable, VerifyReport, rollback, verify
from kgen.records import BuildRecord, Candidate, Compiler, KernelFacts, LaunchArg, Problem, to_json
from kgen.store import IntegrityError, KernelSet, SetPath
from kgen.store.documents import json_bytes
from kgen.store.kernelset import manifest_bytes
from kgen.store.signing import check, digest, sign

CASE = make_case("one", {1: WIN, 8: TIE})


@pytest.fixture
def target(tmp_path: Path) -> SetPath:
    return fill(tmp_path / "set", CASE)


def found(report: VerifyReport, outcome: Outcome) -> dict[str, str]:
    return {f.check: f.message for f in report.findings if f.outcome is outcome}


def test_a_good_set_is_ok_and_untouched(target: SetPath) -> None:
    before = {p: p.stat().st_mtime_ns for p in target.path.rglob("*")}
    report = verify(target, CURRENT)
    assert report.ok
    assert set(found(report, Outcome.OK)) == {"manifest", "source", "evidence", "objects", "builds", "fresh"}
    assert found(report, Outcome.SKIP) == {"rebuild": "not asked for"}
    assert {p: p.stat().st_mtime_ns for p in target.path.rglob("*")} == before


def test_an_empty_set_is_ok(tmp_path: Path) -> None:
    assert verify(SetPath(tmp_path / "none"), CURRENT).ok
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("current", "reason"),
    [
        (Current({OP: "d" * 64}, 1), "the contract of moe_shared has changed"),
        (Current({OP: CONTRACT}, 2), "gate contract 1, now 2"),
        (Current({}, 1), "no op moe_shared"),
    ],
)
def test_stale_evidence_is_shown_as_stale_and_is_no_failure(target: SetPath, current: Current, reason: str) -> None:
    report = verify(target, current)
    assert report.ok
    assert reason in found(report, Outcome.STALE)["fresh"]


def each_file(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name != ".lock")


@settings(max_examples=60)
@given(which=st.integers(0, 100), position=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_every_flipped_bit_in_any_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, which: int, position: int, bit: int
) -> None:
    target = fill(tmp_path_factory.mktemp("flip") / "set", CASE)
    files = each_file(target.path)
    path = files[which % len(files)]
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert not verify(target, CURRENT).ok, f"{path.name} byte {position % len(data)} bit {bit}"


def test_every_missing_file_is_found(target: SetPath) -> None:
    for path in each_file(target.path):
        if path.name == "manifest.json":
            continue
        data = path.read_bytes()
        path.unlink()
        report = verify(target, CURRENT)
        assert not report.ok and any("missing" in m for m in found(report, Outcome.BAD).values()), path
        path.write_bytes(data)
    assert verify(target, CURRENT).ok


def reseal(target: SetPath, change: Callable[[dict[str, object]], None]) -> None:
    """Change the first promotion and give the manifest a fitting checksum: what a forger would do."""
    manifest = KernelSet(target.path).manifest()
    changes: dict[str, object] = {}
    change(changes)
    first = replace(manifest.promotions[0], **changes)  # type: ignore[arg-type]
    (target.path / "manifest.json").write_bytes(manifest_bytes(replace(manifest, promotions=(first,))))


FORGED: dict[str, tuple[str, dict[str, object]]] = {
    "evidence": ("a better label", {"labels": dict.fromkeys(CASE.evidence.evidence.objects, "win")}),
    "source": ("another candidate", {"candidate": "f" * 64}),
    "objects": ("other objects", {"objects": dict.fromkeys(CASE.evidence.evidence.objects, "e" * 64)}),
    "builds": ("another function", {"functions": dict.fromkeys(CASE.evidence.evidence.objects, "other")}),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_sealed_manifest_that_does_not_fit_its_files_is_bad(target: SetPath, kind: str) -> None:
    what, changes = FORGED[kind]
    reseal(target, lambda c: c.update(changes))
    assert kind in found(verify(target, CURRENT), Outcome.BAD), what


def test_an_object_exchanged_for_another_good_one_is_bad(target: SetPath) -> None:
    a, b = CASE.evidence.evidence.objects
    shas = CASE.evidence.evidence.objects
    reseal(target, lambda c: c.update(objects={a: shas[b], b: shas[a]}))
    assert set(found(verify(target, CURRENT), Outcome.BAD)) == {"evidence", "builds"}


def test_missing_history_is_bad(target: SetPath) -> None:
    manifest = KernelSet(target.path).manifest()
    (target.path / "manifest.json").write_bytes(manifest_bytes(replace(manifest, history=())))
    assert "history" in found(verify(target, CURRENT), Outcome.BAD)


def rebuilder(change: Callable[[BuildRecord], BuildRecord | None], compiler: Compiler | None = None) -> Rebuilder:
    """Builds the test candidate again, with a change."""

    def again(candidate: Candidate, problems: tuple[Problem, ...]) -> tuple[BuildRecord, ...]:
        assert candidate.id == CASE.candidate.id
        built = [build(candidate, p, CASE.objects[CASE.evidence.evidence.objects[p.key]]) for p in problems]
        return tuple(b for b in map(change, built) if b is not None)

    return Rebuilder(compiler or CASE.builds[0].compiler, again, same_code)


def other_code(b: BuildRecord) -> BuildRecord:
    return replace(b, kernels=tuple(replace(k, code_sha256="0" * 64) for k in b.kernels))


def other_container(b: BuildRecord) -> BuildRecord:
    return replace(b, object_sha256="1" * 64, cubin_sha256="2" * 64, compile_seconds=9.0)


CHANGED: dict[str, tuple[str, Callable[[BuildRecord], BuildRecord | None]]] = {
    "other kernel code": ("other machine code", other_code),
    "one kernel more": (
        "different kernels",
        lambda b: replace(b, kernels=(*b.kernels, KernelFacts("more", 1, 0, 0, 0, "a" * 64))),
    ),
    "another grid": ("launch 0", lambda b: replace(b, launches=(replace(b.launches[0], grid=(1, 1, 1)),))),
    "one launch more": ("1 launches a call, and 2", lambda b: replace(b, launches=(*b.launches, b.launches[0]))),
    "another argument": (
        "launch 0",
        lambda b: replace(b, launches=(replace(b.launches[0], args=(LaunchArg("y", 0, "00"),)),)),
    ),
    "no build at all": ("does not build", lambda b: None),
    "one point only": ("does not build", lambda b: b if b.problem == problem(1) else None),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_source_that_builds_to_something_else_is_bad(target: SetPath, what: str) -> None:
    text, change = CHANGED[what]
    assert text in found(verify(target, CURRENT, rebuilder(change)), Outcome.BAD)["rebuild"]


@pytest.mark.parametrize("change", [lambda b: b, other_container], ids=["same", "same code in another container"])
def test_a_source_that_builds_to_the_same_is_ok(target: SetPath, change: Callable[[BuildRecord], BuildRecord]) -> None:
    report = verify(target, CURRENT, rebuilder(change))
    assert report.ok and "2 points rebuilt" in found(report, Outcome.OK)["rebuild"]


@pytest.mark.parametrize("other", [Compiler("4.8.0", "cu12"), Compiler("4.8.1", "cu13")])
def test_another_compiler_release_is_a_skip_that_names_both(target: SetPath, other: Compiler) -> None:
    report = verify(target, CURRENT, rebuilder(other_code, other))
    assert report.ok
    message = found(report, Outcome.SKIP)["rebuild"]
    assert message == f"built with 4.8.1 (cu12), here is {other.version} ({other.flavour})"


def test_a_rebuild_that_is_impossible_here_is_a_skip(target: SetPath) -> None:
    def nowhere(_: Candidate, __: tuple[Problem, ...]) -> tuple[BuildRecord, ...]:
        raise RebuildUnavailable("no sandbox on this machine")

    report = verify(target, CURRENT, Rebuilder(CASE.builds[0].compiler, nowhere, same_code))
    assert report.ok and found(report, Outcome.SKIP)["rebuild"] == "no sandbox on this machine"


def test_only_kernels_that_serve_are_rebuilt(target: SetPath) -> None:
    rollback(target, OP)
    report = verify(target, CURRENT, rebuilder(other_code))
    assert report.ok and "rebuild" not in {f.check for f in report.findings}


def test_every_promotion_is_checked_also_those_rolled_back(target: SetPath) -> None:
    rollback(target, OP)
    KernelSet(target.path).object_path(CASE.builds[0].object_sha256).unlink()
    assert "objects" in found(verify(target, CURRENT), Outcome.BAD)


def test_signature_covers_every_field_of_the_evidence() -> None:
    evidence = CASE.evidence.evidence
    signed = sign(evidence, KEY)
    assert check(signed, KEY) and not check(signed, b"other") and not check(signed, b"")
    for field in dataclasses.fields(evidence):
        altered = replace(evidence, **{field.name: "changed"})  # type: ignore[arg-type]
        assert not check(replace(signed, evidence=altered, run=altered.run), KEY), field.name


def test_signature_survives_the_way_through_a_file(target: SetPath) -> None:
    kernels = KernelSet(target.path)
    stored = kernels.evidence(kernels.manifest().promotions[0])
    assert check(stored, KEY)
    assert json.loads(json_bytes(stored)) == to_json(CASE.evidence)


@pytest.mark.parametrize("hmac", ["", "0" * 64, "é", "\ud800"])
def test_a_wrong_signature_is_false_and_never_an_error(hmac: str) -> None:
    assert not check(replace(CASE.evidence, hmac=hmac), KEY)


def test_a_signature_for_another_run_is_false() -> None:
    assert not check(replace(CASE.evidence, run="another"), KEY)


def test_signing_without_a_key_is_impossible() -> None:
    with pytest.raises(ValueError, match="empty"):
        digest(CASE.evidence.evidence, b"")


def test_damage_of_the_manifest_is_one_finding(target: SetPath) -> None:
    (target.path / "manifest.json").write_bytes(b"{")
    report = verify(target, CURRENT)
    assert not report.ok and len(report.findings) == 1
    with pytest.raises(IntegrityError):
        rollback(target, OP)
