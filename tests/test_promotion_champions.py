"""A kernel in place is a baseline of whatever would replace it, from the kit to the promotion."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.sets import CURRENT, KEY, OP, WIN, build, fill, make_case, problem

from kgen.gates.kit_units import CarriedCandidate, Done, Unit, part_of, units
from kgen.ops import REGISTRY
from kgen.promotion import Refused, promote
from kgen.promotion.champions import champions
from kgen.promotion.gather import gather
from kgen.records import Candidate, GateResult, KernelFacts, Origin, Status, sha256_bytes
from kgen.store.cache import Blobs
from kgen.store.documents import json_bytes
from kgen.store.errors import IntegrityError
from kgen.store.kernelset import KernelSet
from kgen.store.runs import Runs
from kgen.store.signing import sign

SERVED = REGISTRY.get(OP).pack.served[0]
NEW = Candidate(OP, "# new\n", Origin("test"))


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "objects")


def builds(*tokens: int):
    return [build(NEW, problem(t, dims=SERVED), f"new {t}".encode()) for t in tokens]


def test_the_serving_builds_come_with_their_objects(tmp_path: Path, blobs: Blobs) -> None:
    case = make_case("old", {1: WIN, 8: WIN}, dims=SERVED)
    target = fill(tmp_path / "set", case)
    found = champions(target.path, builds(1, 2, 8), blobs)
    assert [r.problem.tokens for r in found] == [1, 8]
    assert all(blobs.get(r.object_sha256, ".o") == case.objects[r.object_sha256] for r in found)


def test_stock_points_and_an_empty_set_have_no_champion(tmp_path: Path, blobs: Blobs) -> None:
    assert champions(tmp_path / "nothing", builds(1), blobs) == ()


def test_a_kernel_is_not_its_own_rival(tmp_path: Path, blobs: Blobs) -> None:
    case = make_case("same", {1: WIN}, dims=SERVED)
    target = fill(tmp_path / "set", case)
    assert champions(target.path, case.builds, blobs) == ()


def test_a_damaged_champion_is_an_integrity_error(tmp_path: Path, blobs: Blobs) -> None:
    target = fill(tmp_path / "set", make_case("old", {1: WIN}, dims=SERVED))
    stored = next((target.path / "objects").iterdir())
    stored.write_bytes(stored.read_bytes()[:-3])
    with pytest.raises(IntegrityError):
        champions(target.path, builds(1), blobs)


def test_only_the_sweep_meets_the_champion_and_only_at_its_points(tmp_path: Path) -> None:
    old = tuple(replace(b, object_sha256="f" * 64) for b in builds(1, 64))
    carried = CarriedCandidate(NEW.id, tuple(builds(1, 2, 64)), (), old)
    by_gate = {
        gate: units(REGISTRY.get(OP), carried, tmp_path, [gate], ["t1", "t2"]) for gate in ("numeric", "model", "perf")
    }
    assert [u.champions for u in by_gate["numeric"] + by_gate["model"]] == [(), ()]
    (sweep,) = by_gate["perf"]
    assert [c.record.problem.tokens for c in sweep.champions] == [1]


def timed_part(champion: bool, gate: str = "perf"):
    one = CarriedCandidate(NEW.id, tuple(builds(1)), (), tuple(builds(1)) if champion else ())
    (unit,) = units(REGISTRY.get(OP), one, Path("o"), [gate], [])
    assert isinstance(unit, Unit)
    done = Done(GateResult(unit.gate, Status.PASS, "perf.pass", "fine"))
    return part_of(REGISTRY.get(OP), "run", "sm_90a", "", unit, done, "2026-01-01T00:00:00Z")


def test_evidence_says_which_objects_were_in_place() -> None:
    key = problem(1, dims=SERVED).key
    assert timed_part(True).facts["champions"] == {key: builds(1)[0].object_sha256}
    assert timed_part(False).facts["champions"] == {}
    assert "champions" not in timed_part(False, "numeric").facts


@pytest.mark.parametrize(
    ("facts", "against"), [({"champions": {"a": "b"}}, {"a": "b"}), ({}, {}), ({"champions": 1}, {})]
)
def test_a_case_knows_what_it_was_measured_against(tmp_path: Path, facts: dict, against: dict) -> None:
    case = make_case("mine")
    evidence = replace(case.evidence.evidence, facts=facts)
    run = Runs(tmp_path / "runs").create(OP, "test", "0", {})
    blobs = Blobs(tmp_path / "objects")
    for data in case.objects.values():
        blobs.put(data, ".o")
    folder = run.add(case.candidate)
    folder.write_builds(case.builds)
    folder.write_verdict(case.verdict)
    folder.write("evidence.json", json_bytes(sign(evidence, KEY)))
    folder.write("raw.json.xz", case.raw)
    found = gather(folder, blobs)
    assert found.against == against
    target = fill(tmp_path / "set", make_case("theirs"))
    with pytest.raises(Refused, match="another champion"):
        promote(target, found, CURRENT, KEY)


def test_new_evidence_for_the_kernel_in_place_is_not_superseded_by_itself(tmp_path: Path) -> None:
    case = make_case("same", {1: WIN})
    target = fill(tmp_path / "set", case)
    later = replace(case.evidence.evidence, finished="2026-02-01T00:00:00Z")
    again = replace(case, evidence=sign(later, KEY), against={})
    assert promote(target, again, CURRENT, KEY).seq >= 1


def rebuilt(case, kernels=None):
    """The same source, whose objects came out with other bytes; `kernels`: with other machine code as well."""
    builds = tuple(replace(b, object_sha256=sha256_bytes(b"again" + b.problem.key.encode())) for b in case.builds)
    builds = tuple(replace(b, kernels=kernels) for b in builds) if kernels else builds
    objects = {b.object_sha256: b"again" + b.problem.key.encode() for b in builds}
    named = replace(case.evidence.evidence, objects={b.problem.key: b.object_sha256 for b in builds})
    return replace(case, builds=builds, objects=objects, evidence=sign(named, KEY), against={})


def test_the_kernel_in_place_built_again_with_the_same_code_is_no_rival(tmp_path: Path, blobs: Blobs) -> None:
    case = make_case("same", {1: WIN}, dims=SERVED)
    target = fill(tmp_path / "set", case)
    again = rebuilt(case)
    assert champions(target.path, again.builds, blobs) == ()
    before = KernelSet(target.path).manifest()
    assert promote(target, again, CURRENT, KEY).seq == before.seq + 1
    key = again.builds[0].problem.key
    assert KernelSet(target.path).manifest().champion(key).objects[key] == again.builds[0].object_sha256


def test_the_same_source_with_other_machine_code_is_a_rival(tmp_path: Path, blobs: Blobs) -> None:
    case = make_case("same", {1: WIN}, dims=SERVED)
    target = fill(tmp_path / "set", case)
    other = rebuilt(case, (KernelFacts("k", 32, 0, 0, 128, "e" * 64),))
    assert len(champions(target.path, other.builds, blobs)) == 1
    with pytest.raises(Refused, match="another champion"):
        promote(target, other, CURRENT, KEY)
