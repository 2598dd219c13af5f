"""What a machine does to stored files: kills, full disks, power cuts, rivals, damage. Nothing is lost or half done.

The cases lie in tests/faults/durability/, one file each; each is tried on the store as it is, and on one whose defence
was taken out. Here points are drawn by seed; all of them under make deep, with the result in record.json beside.
"""

from collections.abc import Iterator

import pytest
from faults.durability.harness.case import Case, cases
from faults.durability.harness.desk import Desk

CASES = cases()
LISTED = [pytest.param(case, id=name, marks=[pytest.mark.deep] if case.deep else []) for name, case in CASES.items()]
ALL = [pytest.param(case, id=name) for name, case in CASES.items()]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


@pytest.fixture(scope="module")
def thorough() -> Iterator[Desk]:
    made = Desk(every=True)
    yield made
    made.close()


def word(seen: str) -> str:
    return seen.split(":")[0].split(" (")[0]


@pytest.mark.parametrize("case", LISTED)
def test_stored_files_withstand_what_the_machine_does(case: Case, desk: Desk) -> None:
    assert case.real(desk) == case.must


@pytest.mark.parametrize("case", LISTED)
def test_without_its_defence_the_fault_shows(case: Case, desk: Desk) -> None:
    assert case.then != case.must, "the case would show nothing"
    assert word(case.weakened(desk)) == case.then


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", ALL)
def test_at_every_point_stored_files_withstand_what_the_machine_does(case: Case, thorough: Desk) -> None:
    assert case.real(thorough) == case.must
