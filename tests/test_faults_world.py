"""Everything that goes wrong with the world ends as its case says, and otherwise where the defence is taken out.

The cases lie in tests/faults/world/, one file each; `faults.harness` tries them. Faults of the disk below a set and a
run are in test_faults_durability.py. docs/threat-model.md holds the table of both.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from exploits.harness.page import PAGE
from faults.harness.case import ROWS, Case, Kept, Reference, Shown, cases, references
from faults.harness.desk import Desk
from faults.harness.page import page

CASES, REFERENCES = cases(), references()
LISTED = [pytest.param(case, id=name, marks=[pytest.mark.deep] if case.deep else []) for name, case in CASES.items()]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    folder = Path(tempfile.mkdtemp(prefix="kgen-world-"))  # not pytest's own, which no other user may enter
    folder.chmod(0o755)
    made = Desk(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("case", LISTED)
def test_a_fault_ends_as_its_case_says(case: Case, desk: Desk) -> None:
    assert case.caught(desk) == case.code


@pytest.mark.parametrize("case", LISTED)
def test_without_its_defence_a_fault_ends_otherwise(case: Case, desk: Desk) -> None:
    assert case.then != case.code, "the case would show nothing"
    assert case.weakened(desk) == case.then


@pytest.mark.parametrize("one", REFERENCES, ids=lambda r: r.exploit if isinstance(r, Shown) else r.durability)
def test_a_case_that_is_referred_to_says_what_is_expected_of_it(one: Reference) -> None:
    if isinstance(one, Kept):
        assert one.case.must == one.must
    else:
        assert (one.case.gate, one.case.code) == (one.gate, one.code)
    assert one.case.off.words


def test_every_row_has_its_cases() -> None:
    shown = [case.row for case in CASES.values()] + [one.row for one in REFERENCES]
    assert set(shown) == set(ROWS)


def test_the_threat_model_lists_the_faults_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "PYTHONPATH=tests python -m faults.harness.page"
