"""A promoted source is built again with the real compiler, in the real sandbox, and gives the promoted machine code."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.builds import shared
from support.sets import ARCH, DIMS, KEY, OP, WIN, make_case

from kgen.gates.compile import CompileGate
from kgen.gates.sandbox.levels import NoSandboxError
from kgen.ops import REGISTRY
from kgen.promotion import Case, Current, Outcome, promote, verify
from kgen.promotion.rebuild import gate_rebuilder
from kgen.records import BuildRecord, Candidate, Evidence, Origin, sha256_bytes
from kgen.store import SetPath
from kgen.store.signing import sign

SOURCE = (Path(__file__).parent / "support" / "row_copy.py").read_text()
BIN = 2
CONTRACT = REGISTRY.get(OP).contract_sha256()
CURRENT = Current({OP: CONTRACT}, 1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BuildRecord, bytes]]:
    candidate = Candidate(OP, SOURCE, Origin("test"))
    try:
        with CompileGate(REGISTRY.get(OP), tmp_path_factory.mktemp("cache"), shared()) as gate:
            report = gate.run(candidate, [REGISTRY.get(OP).problem(DIMS, BIN, ARCH)])
    except NoSandboxError as error:
        pytest.skip(str(error))
    assert report.result.passed, report.result.message
    (artefact,) = report.artefacts
    yield artefact.record, artefact.object.read_bytes()


def case_of(record: BuildRecord, data: bytes, source: str = SOURCE) -> Case:
    """The case that the gates would have made of this build on a GPU."""
    candidate = Candidate(OP, source, Origin("test"))
    case = make_case(ratios={BIN: WIN}, op_contract=CONTRACT)
    evidence: Evidence = replace(
        case.evidence.evidence, candidate=candidate.id, objects={record.problem.key: sha256_bytes(data)}
    )
    return replace(
        case,
        candidate=candidate,
        verdict=replace(case.verdict, candidate=candidate.id),
        evidence=sign(evidence, KEY),
        builds=(replace(record, candidate=candidate.id),),
        objects={sha256_bytes(data): data},
    )


def rebuilt(target: SetPath) -> tuple[Outcome, str]:
    report = verify(target, CURRENT, gate_rebuilder(REGISTRY))
    (finding,) = [f for f in report.findings if f.check == "rebuild"]
    assert report.ok is (finding.outcome is not Outcome.BAD)
    return finding.outcome, finding.message


def test_the_source_gives_the_promoted_machine_code_again(tmp_path: Path, built: tuple[BuildRecord, bytes]) -> None:
    target = SetPath(tmp_path / "set")
    promote(target, case_of(*built), CURRENT, KEY)
    assert rebuilt(target) == (Outcome.OK, "1 points rebuilt to the same kernel code and launches")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("y[row, at] = m[row, at]", "y[row, at] = m[row, 0]", "other machine code"),
        ("THREADS = 128", "THREADS = 64", "else than the promoted object"),
        ("RowCopy(dims", "Missing(dims", "does not build any more"),
    ],
)
def test_another_source_beside_the_object_is_bad(
    tmp_path: Path, built: tuple[BuildRecord, bytes], old: str, new: str, text: str
) -> None:
    """Everything fits together by hash, but the source is not what the object was built from."""
    target = SetPath(tmp_path / "set")
    promote(target, case_of(*built, source=SOURCE.replace(old, new)), CURRENT, KEY)
    outcome, message = rebuilt(target)
    assert outcome is Outcome.BAD and text in message and "\n" not in message
