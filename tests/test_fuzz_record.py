"""The record of the last long run names the targets and cases that there are, found nothing, and is on the page."""

import json

import pytest
from fuzz.cases import cases
from fuzz.page import PAGE, page
from fuzz.run import RECORD
from fuzz.targets import TARGETS
from support.checkout import ROOT

ROWS = json.loads(RECORD.read_text(encoding="utf-8"))["targets"]


def test_the_record_is_about_the_targets_that_there_are() -> None:
    assert list(ROWS) == list(TARGETS), "make fuzz"
    assert {path.parent.name for path in cases()} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_ran_for_its_time_and_broke_no_promise(name: str) -> None:
    row = ROWS[name]
    assert row["executions"] >= 40 and row["seconds"] >= 5
    assert row["crashes"] == 0
    assert row["cases"] <= sum(path.parent.name == name for path in cases()), "a case is never taken away"


def test_the_page_shows_targets_and_record_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "PYTHONPATH=tests python -m fuzz.page"
    assert "make fuzz" in text and "\nfuzz:" in (ROOT / "Makefile").read_text(encoding="utf-8")
