"""The mutation run's tool, and the record of its last run: enough mutants were killed, and none is unaccounted for.

The record names the text of each module that it was made of by hash. A module that has changed since is no failure
here: its score is then that of an older text, `make mutation` makes it anew, and what this test holds fast is that the
record is whole and that no module is below its mark. Functions that drive a process or a GPU and judge nothing are
counted apart, and have no mark. An entry of the list that names no mutant of an unchanged module is a failure.
"""

import hashlib
import json
import time
from collections import Counter
from functools import cache
from typing import Any

import pytest
from mutation import forks, record
from mutation.areas import AREAS, DRIVERS, FIRST, MODULES, ROOT, sources
from mutation.cover import Cover
from mutation.mutants import Mutant, mutants, mutated

TEXT = '''
LIMIT = 3

def kept(values: list[int], most: int = 2, name: str = "") -> bool:
    """Words are no code."""
    if not values or len(values) > most:
        raise ValueError(f"{len(values) - 1} values")
    total = 0
    for value in values:
        if value < 0:
            continue
        total += value
    assert total >= 0
    return all(v == total for v in values if v) and max(values) - 1 <= LIMIT
'''


@cache
def recorded() -> dict[str, Any]:
    body: dict[str, Any] = json.loads(record.RECORD.read_text(encoding="utf-8"))
    return body


def test_every_mutant_is_accounted_for() -> None:
    body = recorded()
    assert set(body["areas"]) == set(AREAS) and set(body["modules"]) == set(MODULES)
    for area, modules in AREAS.items():
        whole, parts = body["areas"][area], [body["modules"][m] for m in modules]
        for name in ("mutants", "killed", "equivalent", "not_tried"):
            assert whole[name] == sum(p[name] for p in parts)
        assert whole["survivors"] == sum(len(p["survivors"]) for p in parts)
        tried = whole["killed"] + whole["survivors"]
        assert whole["mutants"] == tried + whole["equivalent"] + whole["not_tried"]
        assert whole["score"] == round(whole["killed"] / tried, 4)
    assert all(len(part["sha256"]) == 64 for part in body["modules"].values())


@pytest.mark.parametrize("module", MODULES)
def test_of_every_module_enough_of_what_was_tried_is_killed(module: str) -> None:
    part = recorded()["modules"][module]
    assert part["killed"] and part["killed"] / (part["killed"] + len(part["survivors"])) >= record.LEAST
    assert part["whole"] == (part["not_tried"] == 0) and (part["whole"] or module not in FIRST)


def test_drivers_are_named_with_reasons_and_counted_apart() -> None:
    body = recorded()["modules"]
    assert {m for m, part in body.items() if "driver" in part} == set(DRIVERS)
    for module, driver in DRIVERS.items():
        assert len(driver.reason) > 40 and module not in FIRST
        known = {m.function for m in mutants(module, sources()[module])}
        assert set(driver.functions) < known, "the rest of the module is counted"
        assert body[module]["driver"]["functions"] == list(driver.functions)


def test_the_page_on_gates_shows_the_table_of_the_record() -> None:
    page = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    assert "\n".join(record.page(recorded())) in page


def test_every_entry_of_the_list_names_a_mutant_and_gives_a_reason() -> None:
    listed = record.equivalents()
    assert not [key for key, count in Counter(e.key for e in listed).items() if count > 1]
    assert all(len(e.reason) > 20 for e in listed)
    same = {m: t for m, t in sources().items() if _sha256(t) == recorded()["modules"][m]["sha256"]}
    entries = {e.key for e in listed if e.key.split(":", 1)[0] in same}
    known = {m.key for module in {k.split(":", 1)[0] for k in entries} for m in mutants(module, same[module])}
    assert entries <= known, sorted(entries - known)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_changes_of_a_text_are_these() -> None:
    found = [(m.function, m.before, m.after) for m in mutants("x.py", TEXT)]
    assert len({m.key for m in mutants("x.py", TEXT)}) == len(found)
    changed = {after for function, _, after in found if function == ""}
    assert {"LIMIT = 4", "LIMIT = 2"} <= changed
    assert any("most: int=3" in c for c in changed) and any("name: str='x'" in c for c in changed)
    inner = {after for function, _, after in found if function == "kept"}
    for piece in (
        "if values or len(values)", "if not values and len(values) > most:", "if not values:", "if len(values) > most:",
        "len(values) >= most:", "len(values) <= most:", "if value <= 0:", "if value >= 0:", "if value < 1:",
        "total = 1", "total = -1", "total -= value", "any((v == total", "v != total", "min(values) - 1",
        "max(values) + 1", "max(values) - 2", "< LIMIT", "> LIMIT", "for v in values))", "or max(", "return None",
    ):  # fmt: skip
        assert any(piece in each for each in inner), piece
    assert Counter(after for _, _, after in found)["pass"] == 3  # the raise, the continue, the sum
    assert not any("assert" in before or "Words" in before or "1 values" in before for _, before, _ in found)


def namespace(mutant: Mutant) -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(compile(mutated(TEXT, mutant), "x.py", "exec"), made)
    return made


def test_a_mutant_differs_in_its_one_change() -> None:
    (mutant,) = [m for m in mutants("x.py", TEXT) if m.after.endswith("if len(values) > most:")]
    made = namespace(mutant)
    with pytest.raises(ValueError):
        made["kept"]([1, 1, 1])
    with pytest.raises(ValueError, match="max"):
        made["kept"]([])  # the mutant goes on to ask for the largest of nothing


def test_a_function_that_is_held_elsewhere_runs_the_mutant_and_a_test_sees_it() -> None:
    made: dict[str, Any] = {}
    exec(compile(TEXT, str(ROOT / "x.py"), "exec"), made)
    held = made["kept"]
    known = forks.functions(["x.py"])
    assert known["x.py", "kept"] == [held]
    assert held([0, 3]) is True and not held([1, 2])
    assert forks.in_fork(lambda folder: held([1, 2]) is False, 30) == forks.ALIVE
    (loud,) = [m for m in mutants("x.py", TEXT) if "v != total" in m.after]
    assert forks.in_fork(lambda folder: (forks.swap(known, loud, TEXT), held([0, 3]))[1] is True, 30) == forks.KILLED
    assert held([0, 3]), "only the fork has the mutant"


def test_what_hangs_or_dies_is_killed_and_what_passes_is_alive() -> None:
    assert forks.in_fork(lambda folder: True, 30) == forks.ALIVE
    assert forks.in_fork(lambda folder: False, 30) == forks.KILLED
    assert forks.in_fork(lambda folder: bool(1 / 0), 30) == forks.KILLED
    assert forks.in_fork(lambda folder: bool(time.sleep(60)), 0.3) == forks.TIMEOUT


def test_tests_of_a_line_are_run_cheapest_first_within_the_budget() -> None:
    seconds = {"b::slow": 1.0, "b::quick": 0.01, "a::quick": 0.02, "a::dear": 9.0}
    lines = {("m", 1): {"b::slow", "a::quick"}, ("m", 2): {"b::quick", "a::dear"}}
    cover = Cover(lines, seconds)
    assert cover.of([("m", 1), ("m", 3)]) == {"b::slow", "a::quick"}
    assert cover.ordered(cover.of([("m", 1), ("m", 2)]), 2.0) == ("b::quick", "a::quick", "b::slow")
