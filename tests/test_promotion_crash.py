"""Promotion under SIGKILL at any moment, with a rival, and on disks that are really full: as before or as after.

Kills and refusals at every single change, power cuts and rivals are in test_faults_durability.py.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.limits import file_size_limit, small_disk
from support.sets import CURRENT, KEY, OP, WIN, fill, make_case, promoted

from kgen.promotion import promote, rollback, verify
from kgen.records import Manifest
from kgen.store import Durable, KernelSet, SetPath, StoreError
from kgen.store.durable import TEMP_PREFIX

PROMOTER = Path(__file__).parent / "support" / "promoter.py"
KILLS = 12  # a number, not a time: a busy machine must not make the test weaker


def start(target: SetPath, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROMOTER), str(target.path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def whole(target: SetPath) -> Manifest:
    """The manifest, after every byte of the set has been verified."""
    report = verify(target, CURRENT)
    assert report.ok, [f for f in report.findings if f.outcome == "bad"]
    return KernelSet(target.path).manifest()


def count_steps(tmp_path: Path) -> int:
    """How many durable steps the promoter's promotion takes on a set that holds one already."""
    steps: list[str] = []
    target = fill(tmp_path / "count", make_case("old", {1: WIN}))
    promote(target, make_case("new", {1: WIN}), CURRENT, KEY, durable=Durable(steps.append))
    return len(steps)


@pytest.mark.deep  # the cases of faults/durability/ kill at every change, and let promoters compete
def test_random_sigkills_of_two_rival_promoters_never_break_the_set(tmp_path: Path) -> None:
    target = fill(tmp_path / "set", make_case("first", {1: WIN}))
    rivals = {name: start(target, "loop", name) for name in ("a", "b")}
    last = 1
    numbers: set[int] = set()  # told by any of them so far
    try:
        for kills in range(KILLS):
            name = "ab"[kills % 2]
            first = rivals[name].stdout.readline()  # type: ignore[union-attr]  # it works: then kill it anywhere
            time.sleep(0.0007 * (kills % 11))
            rivals[name].kill()
            rest, _ = rivals[name].communicate(timeout=60)
            told = [int(line) for line in (first + rest).split("\n")[:-1]]
            assert told == sorted(set(told))
            seq = whole(target).seq
            assert seq >= max(told) and seq >= last and not numbers & set(told)
            last, numbers = seq, numbers | set(told)
            rivals[name] = start(target, "loop", name)
    finally:
        for process in rivals.values():
            process.kill()
            process.communicate(timeout=60)
    assert len(numbers) >= KILLS  # each was at work when it was killed
    assert promoted(target, make_case("last", {1: WIN})).seq == whole(target).seq > last


def test_orphans_of_killed_promoters_are_swept_when_old(tmp_path: Path) -> None:
    target = fill(tmp_path / "set", make_case("old", {1: WIN}))
    with start(target, "kill", "2") as process:
        process.communicate(timeout=60)
    orphans = list(target.path.rglob(f"{TEMP_PREFIX}*"))
    assert len(orphans) == 1
    promoted(target, make_case("two", {1: WIN}))
    assert orphans[0].exists()  # young: it might be somebody's
    os.utime(orphans[0], (0, 0))
    rollback(target, OP)
    assert not orphans[0].exists()


def test_full_disk_leaves_the_set_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        target = fill(disk / "set", make_case("old", {1: WIN}))
        before = (target.path / "manifest.json").read_bytes()
        noise = random.Random(1).randbytes(400_000)
        with pytest.raises(StoreError, match="No space left") as caught:
            promoted(target, make_case("big", {1: WIN}, objects={1: noise}))
        assert str(caught.value.path) in str(caught.value)
        assert (target.path / "manifest.json").read_bytes() == before
        assert not list(target.path.rglob(f"{TEMP_PREFIX}*"))
        assert whole(target).seq == 1
        assert promoted(target, make_case("small", {1: WIN})).seq == 2


def test_full_disk_at_the_manifest_itself_leaves_the_old_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        target = fill(disk / "set", make_case("old", {1: WIN}))

        def fill_up(step: str) -> None:
            steps.append(step)
            if len(steps) == total - 6:
                (disk / "filler").write_bytes(bytes(1 << 10))
                with pytest.raises(OSError, match="No space left"), (disk / "filler2").open("wb", buffering=0) as out:
                    while True:
                        out.write(bytes(4096))

        steps: list[str] = []
        total = count_steps(tmp_path)
        with pytest.raises(StoreError, match="No space left") as caught:
            promote(target, make_case("new", {1: WIN}), CURRENT, KEY, durable=Durable(fill_up))
        assert caught.value.path == target.path / "manifest.json"
        assert whole(target).seq == 1


def test_file_size_limit_leaves_the_set_as_it_was(tmp_path: Path) -> None:
    target = fill(tmp_path / "set", make_case("old", {1: WIN}))
    before = (target.path / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match="File too large"), file_size_limit(1500):
        promoted(target, make_case("new", {1: WIN}))
    assert (target.path / "manifest.json").read_bytes() == before
    assert whole(target).seq == 1
