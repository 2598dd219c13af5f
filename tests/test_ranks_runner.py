"""A process a rank on one host, end to end on the CPU: what is right passes, and each mistake and loss is refused.

The stand-in keeps the protocol of the kernels (mailboxes, sentinel, parities, arming) in memory that processes share.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.deep import deep
from support.ranks_standin import OP, part, standin

from kgen.gates.ranks import host, judge
from kgen.gates.ranks.plan import Request, run_specs
from kgen.gates.ranks.record import CheckRow, RanksRecord
from kgen.records import Status, from_json, to_json

FEW = ["normal", "signed_zero"]
LOSS_SECONDS = 10.0  # within which every rank must have ended


def complaints(rows: Sequence[CheckRow]) -> list[str]:
    return [f"{row.code}: {row.complaint}" for row in rows if row.complaint]


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_families_are_right_on_all_ranks_and_mailboxes_are_armed(ranks: int, tmp_path: Path) -> None:
    spec = standin(ranks=ranks)
    with part("check", spec, tmp_path) as ended:
        assert ended.status == host.DONE, ended.message
        rows = judge.sequences(spec, ended.outcomes) + judge.mailboxes(spec, ended.outcomes)
    assert complaints(rows) == []
    assert {row.what for row in rows} == {*(f.name for f in OP.families), "late", "mailboxes"}


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("flips_a_bit", "o of rank 1 differs from rank 0's"),
        deep("all_flip_a_bit", "must equal the rounded reference"),
        ("wrong_parity", "waited"),
        ("never_arms", "not armed"),
        deep("skips", "waited"),
    ],
)
def test_a_mistake_of_a_rank_is_refused(fault: str, found: str, tmp_path: Path) -> None:
    spec = standin(fault)
    with part("check", spec, tmp_path, families=FEW) as ended:
        rows = judge.sequences(spec, ended.outcomes) + judge.mailboxes(spec, ended.outcomes)
        said = [*complaints(rows), ended.message]
    assert any(found in line for line in said), said


def test_thousands_of_calls_in_a_row_have_the_digests_of_the_reference(tmp_path: Path) -> None:
    spec = standin(tokens=1)
    with part("endure", spec, tmp_path, replays=60) as ended:
        assert ended.status == host.DONE, ended.message
        rows = judge.endured(spec, ended.outcomes) + judge.mailboxes(spec, ended.outcomes)
    assert complaints(rows) == []
    assert [row.calls for row in rows if row.what == "first capture"] == [1200]


def test_a_wrong_bit_in_a_long_run_is_found(tmp_path: Path) -> None:
    spec = standin("all_flip_a_bit", tokens=1)
    with part("endure", spec, tmp_path) as ended:
        rows = judge.endured(spec, ended.outcomes)
    assert any("o of rank 0 is wrong in replay 0" in line for line in complaints(rows))


def test_a_rank_killed_while_all_work_ends_every_other_rank_soon_and_by_name(tmp_path: Path) -> None:
    started = time.monotonic()
    with part("lose", standin(), tmp_path, kill=1) as ended:
        assert ended.lost == "rank 1 ended with SIGKILL"
        assert [o.status for o in ended.outcomes] == ["fault", host.LOST]
        assert "rank 1" in ended.outcomes[0].message
        assert 0 < ended.after < LOSS_SECONDS
    assert time.monotonic() - started < 90


def test_a_rank_that_dies_in_a_call_is_named_and_nobody_hangs(tmp_path: Path) -> None:
    with part("check", standin("dies"), tmp_path, families=FEW) as ended:
        assert ended.status == host.LOST and ended.lost == "rank 1 ended with SIGKILL"
        assert ended.after < LOSS_SECONDS


def test_the_record_of_a_whole_run_says_what_was_judged_and_reads_back(tmp_path: Path) -> None:
    kept: list[RanksRecord] = []
    asked = Request(device="cpu", seed=5, seconds=250, families=("normal",), replays=2, repetitions=3)
    record = run_specs([standin()], tmp_path, asked, lambda line: None, kept.append)
    assert record.verdict is Status.PASS, record.message
    assert [p.name for p in record.parts] == ["check", "time", "endure", "lose"] == [p.parts[-1].name for p in kept]
    assert {p.column for p in record.points} == {"graph", "skew 0", "skew 2", "skew 10", "skew 100"}
    assert all(len(p.samples["candidate"]) == 2 for p in record.points)
    assert from_json(RanksRecord, to_json(record)) == record


def test_a_run_whose_parts_did_not_all_come_through_is_not_proven(tmp_path: Path) -> None:
    asked = Request(device="cpu", seed=5, seconds=250, families=("normal",), parts=("check",))
    record = run_specs([standin()], tmp_path, asked, lambda line: None, lambda so_far: None)
    assert record.verdict is Status.ERROR and "endure" in record.message


def test_a_rank_that_is_wrong_fails_the_candidate(tmp_path: Path) -> None:
    asked = Request(device="cpu", seed=5, seconds=250, families=("normal",), parts=("check",))
    record = run_specs([standin("flips_a_bit")], tmp_path, asked, lambda line: None, lambda so_far: None)
    assert record.verdict is Status.FAIL and record.rows[0].complaint
