"""Which candidates of several runs a kit carries."""

from types import SimpleNamespace
from typing import Any

import pytest

from kgen.cli.boundary import Usage
from kgen.cli.kit import _chosen

FIRST, SECOND, THIRD = "aa11bb22cc33", "aa44bb55cc66", "dd77ee88ff99"


def run(*ids: str) -> Any:
    whole = [SimpleNamespace(candidate=lambda i=i: SimpleNamespace(id=i + "0" * 52)) for i in ids]
    return SimpleNamespace(folders=lambda: whole)


def test_candidates_of_several_runs_are_named_by_id_and_a_run_without_a_name_gives_all() -> None:
    assert _chosen([run(FIRST, SECOND), run(THIRD)], [SECOND]) == [[SECOND], []]
    assert _chosen([run(FIRST, SECOND), run(THIRD)], ["dd77", FIRST + "0" * 52]) == [[FIRST], [THIRD]]


def test_of_one_run_they_may_be_numbers() -> None:
    assert _chosen([run(FIRST, SECOND)], ["2"]) == [["2"]]


def test_a_name_that_no_run_has_is_one_line() -> None:
    with pytest.raises(Usage, match="none of these runs has a candidate '2'; of several runs they are named by id"):
        _chosen([run(FIRST), run(SECOND)], ["2"])
