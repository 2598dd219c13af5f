"""What a machine does to stored files: kills, full disks, power cuts, rivals, damage. Nothing is lost or half done.

The cases lie in tests/faults/durability/, one file each; each is tried on the store as it is, and on one whose defence
was taken out. Here points are drawn by seed; all of them under make deep, with the result in record.json beside.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from exploits.harness.off import NOTHING
from faults.durability.harness import record as the_record
from faults.durability.harness.case import Case, cases
from faults.durability.harness.desk import Desk
from faults.durability.harness.layer import Order
from faults.durability.harness.power import Disk, Folder, Line, lines, loaded
from faults.durability.harness.record import COMMAND, recorded, writers

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


def test_the_layer_saw_every_change(desk: Desk) -> None:
    """What its log says, played back, is what lies there: nothing was written past it."""
    root = desk.copy(desk.template("old"))
    disk, log = Disk(str(root), loaded(root)), root.parent / "log"
    for job in (Order("promote", root, {"text": "new"}, log=str(log)), Order("fill run", root, log=str(log))):
        assert desk.stage(NOTHING).run(job).code == 0
    for line in lines(log):
        if line.kind != "note":
            disk.apply(line)
    found = {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in root.rglob("*")}
    assert all(node == found[name] for name, node in disk.present().items())
    assert set(disk.present()) == set(found)


WRITTEN = (
    ("create", "/r/.tmp", ""),
    ("write", "/r/.tmp", "four"),
    ("rename", "/r/.tmp", "/r/f"),
)
SYNCED_FILE = (*WRITTEN[:2], ("sync", "/r/.tmp", ""), *WRITTEN[2:])
MODELLED = {  # by hand: what may be found under the name `f` after a power cut, None for no such file
    "nothing synced": (WRITTEN, {None, "", "fo", "four", "\0\0\0\0"}),
    "the file only": (SYNCED_FILE, {None, "four"}),
    "the folder only": ((*WRITTEN, ("sync", "/r", "")), {"", "fo", "four", "\0\0\0\0"}),
    "both": ((*SYNCED_FILE, ("sync", "/r", "")), {"four"}),
}


@pytest.mark.parametrize("what", MODELLED)
def test_the_model_of_a_power_cut_leaves_what_posix_allows(what: str) -> None:
    calls, expected = MODELLED[what]
    disk = Disk("/r", Folder())
    for kind, path, text in calls:
        data = text.encode() if kind == "write" else b""
        disk.apply(Line(0, kind, path, text if kind == "rename" else "", 0, data))
    found = [image.get("f") for image in disk.images("seed")]
    assert {None if f is None else f.decode() for f in found} == expected


def test_the_record_is_of_these_cases_and_of_this_code(desk: Desk) -> None:
    record = recorded()
    assert set(record["cases"]) == set(CASES), COMMAND
    assert {n: entry["seen"] for n, entry in record["cases"].items()} == {n: CASES[n].must for n in record["cases"]}
    assert record["writers"] == writers(), f"the store's writers have changed since: {COMMAND}"
    assert {k: record["changes"].get(k) for k in desk.changes} == desk.changes


def test_one_record_is_of_one_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cases are tried anew beside others only where the others are of the same code."""
    before = json.dumps({**recorded(), "writers": "of yesterday"})
    (tmp_path / "record.json").write_text(before)
    monkeypatch.setattr(the_record, "FILE", tmp_path / "record.json")
    assert "are of other code, so all have to be tried" in the_record.main(["newer/run"])
    assert the_record.main(["newer/none"]).startswith("no case newer/none; there are alike/in_a_run, ")
    assert (tmp_path / "record.json").read_text() == before
