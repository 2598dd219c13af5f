"""One device, several processes: real ones, on the stand-in. They take turns, wait with a word, and recover at once."""

import os
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.leases import ended, intervals, start, until

from kgen.gates.gpu import lease, places, standin, watchdog
from kgen.gates.gpu.devices import Device
from kgen.gates.gpu.lease import Busy, LeaseEnded, leased
from kgen.gates.gpu.standin import StandIn
from kgen.store.errors import StoreError

DEVICE = Device("STANDIN-0", "stand-in", 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the stand-in's devices and of the leases, as `start` gives them to its processes."""
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "gpu"))
    return tmp_path


def begun(folder: Path, name: str) -> bool:
    return (folder / "log").exists() and f" {name} begin " in (folder / "log").read_text()


def test_three_processes_never_overlap_and_none_is_left_behind(folder: Path) -> None:
    processes = [start(folder, name, turns=6, hold=0.05) for name in "abc"]
    with ended(*processes):
        assert [p.wait(timeout=120) for p in processes] == [0, 0, 0]
    uses = intervals(folder)
    assert len(uses) == 18
    assert all(one[1] <= two[0] for one, two in pairwise(uses)), "two processes had the device at a time"


def test_a_holder_that_comes_back_at_once_does_not_go_first(folder: Path) -> None:
    holder = start(folder, "again", turns=40, hold=0.03)
    with ended(holder):
        until(lambda: begun(folder, "again"))
        waiting = start(folder, "waiting")
        with ended(waiting):
            assert (holder.wait(timeout=120), waiting.wait(timeout=120)) == (0, 0)
    since = float((folder / "waiting.since").read_text())
    (let_in,) = (begin for begin, _, name, _ in intervals(folder) if name == "waiting")
    assert sum(name == "again" and since < begin < let_in for begin, _, name, _ in intervals(folder)) <= 2


def test_whoever_waits_is_told_for_whom_and_gives_up_with_one_line(folder: Path) -> None:
    holder = start(folder, "holder", hold=60)
    with ended(holder):
        until(lambda: begun(folder, "holder"))
        waiting = start(folder, "waiting", wait=1)
        with ended(waiting):
            said, _ = waiting.communicate(timeout=60)
            assert waiting.returncode == 1
        (line,) = (folder / "said").read_text().splitlines()
        assert f"GPU stand-in STANDIN-0 is in use by process {holder.pid} of " in line and line.endswith(
            ": holder; waiting, 1 s at most"
        )
        last = said.strip().splitlines()[-1]
        assert "Busy: GPU stand-in STANDIN-0 is in use by process" in last and ": holder; it was not free" in last


def test_a_killed_holder_is_recovered_from_at_once_and_its_runner_is_gone_first(folder: Path) -> None:
    holder = start(folder, "holder", hold=60, child=60)
    with ended(holder):
        until(lambda: begun(folder, "holder"))
        child = int((folder / "holder.child").read_text())
        waiting = start(folder, "waiting")
        with ended(waiting):
            until(lambda: (folder / "said").exists())
            assert watchdog.started(child)
            killed = time.monotonic()
            holder.send_signal(signal.SIGKILL)
            assert waiting.wait(timeout=60) == 0
    assert intervals(folder)[0][0] - killed < 2.0
    assert not watchdog.started(child)


def test_a_holder_that_hangs_loses_the_device_and_its_runner_at_the_deadline(folder: Path) -> None:
    holder = start(folder, "holder", hold=1, seconds=3, child=60)
    with ended(holder):
        until(lambda: begun(folder, "holder"))
        child = int((folder / "holder.child").read_text())
        holder.send_signal(signal.SIGSTOP)
        waiting = start(folder, "waiting")
        with ended(waiting):
            assert waiting.wait(timeout=60) == 0
        assert not watchdog.started(child)
        holder.send_signal(signal.SIGCONT)
        said, _ = holder.communicate(timeout=60)
        assert holder.returncode == 1 and "LeaseEnded: the lease of GPU" in said.strip().splitlines()[-1]


def test_a_runner_past_its_own_time_is_killed_though_the_lease_goes_on(folder: Path) -> None:
    holder = start(folder, "holder", hold=60, child=0.5)
    with ended(holder):
        until(lambda: begun(folder, "holder"))
        child = int((folder / "holder.child").read_text())
        until(lambda: not watchdog.started(child), 20)
        owner = lease.owner_of(DEVICE)
        assert owner is not None and owner.pid == holder.pid


def test_two_devices_are_used_side_by_side(folder: Path) -> None:
    processes = [start(folder, name, hold=1.5, devices=2) for name in "ab"]
    with ended(*processes):
        assert [p.wait(timeout=60) for p in processes] == [0, 0]
    assert {use[3] for use in intervals(folder)} == {"STANDIN-0", "STANDIN-1"}


def test_uses_of_one_process_share_its_lease(folder: Path) -> None:
    with standin.in_place(StandIn(folder)):
        seen: list[object] = []

        def use() -> None:
            with leased("cpu", "inner", 5) as held:
                seen.append(held)

        with leased("cpu", "outer", 5) as outer:
            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            owner = lease.owner_of(DEVICE)
        assert seen == [outer] * 4
        assert owner is not None and (owner.pid, owner.what) == (os.getpid(), "outer")
        assert lease.owner_of(DEVICE) is None and lease.current() is None


def test_a_lease_is_extended_by_the_use_that_lasts_longest(folder: Path) -> None:
    with standin.in_place(StandIn(folder)), leased("cpu", "outer", 0.5) as outer:
        with leased("cpu", "inner", 30):
            time.sleep(1.5)
        assert outer is not None
        outer.check()


def test_what_was_done_when_the_lease_was_over_does_not_count(folder: Path) -> None:
    with (
        standin.in_place(StandIn(folder)),
        pytest.raises(LeaseEnded, match=r"its time was over at .*: run again"),
        leased("cpu", "slow", 0.2),
    ):
        time.sleep(2.0)
    assert lease.current() is None


def test_without_its_watchdog_nothing_counts(folder: Path) -> None:
    with (
        standin.in_place(StandIn(folder)),
        pytest.raises(LeaseEnded, match="its watchdog ended"),
        leased("cpu", "x", 60) as held,
    ):
        assert held is not None
        held.dog.kill()
        held.dog.wait()
    with standin.in_place(StandIn(folder)), leased("cpu", "y", 60):
        pass


def test_the_same_process_may_wait_no_time_at_all(folder: Path) -> None:
    holder = start(folder, "holder", hold=60)
    with ended(holder), standin.in_place(StandIn(folder)):
        until(lambda: begun(folder, "holder"))
        with pytest.raises(Busy, match="in use by process"), leased("cpu", "x", 1, wait=0.0, say=lambda _: None):
            pass


def test_a_cpu_needs_no_lease_and_a_machine_without_a_gpu_none_either(folder: Path) -> None:
    with leased("cpu", "x", 1) as held:
        assert held is None
    assert not places.folder().joinpath("STANDIN-0.lease").exists()


def test_files_are_open_to_every_user_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with standin.in_place(StandIn(folder)), leased("cpu", "x", 5):
            pass
    finally:
        os.umask(before)
    found = list(places.folder().iterdir())
    assert places.folder().stat().st_mode & 0o7777 == 0o1777
    assert {p.name for p in found} == {"STANDIN-0.lease", "STANDIN-0.queue"}
    assert {p.stat().st_mode & 0o777 for p in found} == {0o666}


def test_a_file_that_is_a_link_is_refused(folder: Path) -> None:
    (places.folder() / "STANDIN-0.queue").symlink_to(folder / "elsewhere")
    with (
        standin.in_place(StandIn(folder)),
        pytest.raises(StoreError, match="cannot open"),
        leased("cpu", "x", 1),
    ):
        pass
    assert not (folder / "elsewhere").exists()


def test_another_process_under_a_number_that_was_given_again_is_not_killed() -> None:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        group = watchdog.Group(process.pid, 0.0)
        group.born = "1"  # of the process that had the number before
        group.kill()
        time.sleep(0.2)
        assert process.poll() is None and group.gone()
    finally:
        process.kill()
        process.wait()
