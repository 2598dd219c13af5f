"""What goes wrong on a device costs one runner, or the device: real runner and probe processes on the stand-in."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgen.cli import app, boundary
from kgen.gates.gpu import health, places, probe, quarantine, standin
from kgen.gates.gpu.devices import Device
from kgen.gates.gpu.lease import leased
from kgen.gates.gpu.quarantine import DeviceLost, NoDevice, Quarantine
from kgen.gates.gpu.standin import StandIn
from kgen.gates.runner import host
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.rank import RankRow, rank
from kgen.ops import REGISTRY
from kgen.records import to_json
from kgen.store.errors import StoreError

OP = REGISTRY.get("moe_shared")
PROBLEM = OP.problem(OP.pack.small, 1, "sm_90a")
ONE, TWO = Device("STANDIN-0", "stand-in", 0), Device("STANDIN-1", "stand-in", 1)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "gpu"))
    with standin.in_place(StandIn(tmp_path, 2)) as found:
        yield found


def one(fault: str, cache: Path) -> RankRow:
    (row,) = rank([stock_spec(PROBLEM, fault)], cache=cache, device="cpu", repetitions=1, stall=30)
    return row


def test_a_dead_device_is_left_for_another_and_with_the_last_one_the_work_stops(bench: StandIn, tmp_path: Path) -> None:
    row = one("wedges", tmp_path)
    assert (
        row.status == "lost" and "2 probes failed (the stand-in is dead (status 1)) after: the runner " in row.message
    )
    (record,) = quarantine.listed()
    assert (record.device, record.name) == (ONE.uuid, ONE.name) and record.what.startswith("rank job at #0 stock")
    assert "ended with signal SIGSEGV" in record.reason and record.said[-1] == "stand-in: STANDIN-0 is dead"

    with leased("cpu", "next", 60) as held:
        assert held is not None and held.device == TWO
    assert one("", tmp_path).status == "ok", "the next candidate goes on, elsewhere"

    assert one("wedges", tmp_path).status == "lost"
    with pytest.raises(NoDevice, match=r"STANDIN-1 was put in quarantine at .*, 1 more too; .* release STANDIN-1"):
        one("", tmp_path)

    bench.state(ONE).unlink()  # repaired
    assert quarantine.release("STANDIN-0").device == ONE.uuid
    assert [r.device for r in quarantine.listed()] == [TWO.uuid]
    with leased("cpu", "next", 60):
        pass


def test_an_error_of_the_memory_is_the_devices_where_the_driver_counted_it(bench: StandIn, tmp_path: Path) -> None:
    with (
        pytest.raises(DeviceLost, match=r"the driver counts new errors \(errors: 0 -> 1\) after: .*uncorrectable ECC"),
        host.running("rank", job("ecc", tmp_path), deadline=120),
    ):
        pass
    assert [r.device for r in quarantine.listed()] == [ONE.uuid]


def test_words_alone_neither_blame_the_candidate_nor_take_the_device_away(bench: StandIn, tmp_path: Path) -> None:
    with host.running("rank", job("says_ecc", tmp_path), deadline=120) as outcome:
        assert outcome.status == "error" and "uncorrectable ECC" in outcome.message
    assert not quarantine.listed()


def job(fault: str, cache: Path) -> dict[str, object]:
    items = [[0, to_json(stock_spec(PROBLEM, fault))]]
    return {"items": items, "cache": str(cache), "device": "cpu", "seed": 1, "repetitions": 1}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (standin.WRONG, "a sum of integers is wrong: "),
        (standin.DEAD, "the stand-in is dead (status 1)"),
        (standin.STUCK, "no answer within 1 s"),
    ],
)
def test_a_probe_finds_what_is_wrong(bench: StandIn, state: str, says: str) -> None:
    bench.state(ONE).write_text(state)
    with leased("cpu", "probe", 300) as held:
        assert held is not None
        found = health.probe(held, 0.8 if state == standin.STUCK else health.PROBE_SECONDS)
    assert found.startswith(says)


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: uncorrectable NVLink error detected during the execution", True),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", True),
        ("no CUDA-capable device is detected", True),
        ("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: misaligned address", False),
        ("CUDA error: unspecified launch failure", False),
        ("CUDA error: the launch timed out and was terminated", False),
        ("out of memory", False),
    ],
)
def test_which_errors_are_the_machines(text: str, machine: bool) -> None:
    assert health.of_the_machine(text) == machine


def test_a_device_whose_memory_others_have_filled_is_not_ill() -> None:
    assert probe.found("CUDA out of memory. Tried to allocate 64 MiB") == probe.found("CUDA error: out of memory") == ""
    assert probe.found("CUDA error: device-side assert\nmore") == "CUDA error: device-side assert"


def test_a_device_that_got_into_quarantine_meanwhile_is_not_probed(bench: StandIn) -> None:
    with leased("cpu", "x", 60) as held:
        assert held is not None
        quarantine.place(ONE, "first", "x")
        with pytest.raises(DeviceLost, match="first"):
            health.examine(held, "y", "second")
    assert quarantine.place(ONE, "third", "z").reason == "first"


def test_a_device_in_quarantine_is_not_waited_for(bench: StandIn) -> None:
    quarantine.place(ONE, "why", "x")
    with leased("cpu", "x", 60) as held:
        assert held is not None and held.device == TWO
    quarantine.place(TWO, "why", "x")
    with pytest.raises(NoDevice), leased("cpu", "x", 60):
        pass


def test_another_model_is_no_replacement(bench: StandIn) -> None:
    bench._devices[1] = Device("OTHER", "another model", 1)
    quarantine.place(ONE, "why", "x")
    with pytest.raises(NoDevice), leased("cpu", "x", 60):
        pass


def test_a_record_that_is_damaged_is_none(bench: StandIn) -> None:
    quarantine.place(ONE, "why", "x")
    (places.folder() / "STANDIN-0.quarantine").write_text('{"schema": "kgen.gpu-quarantine/1", "device"')
    assert quarantine.listed() == [] and quarantine.find(ONE) is None


# --- the command


def kgen(*words: str) -> int:
    return boundary.run(app.build(), list(words))


def test_the_command_shows_quarantine_and_releases(bench: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    quarantine.place(ONE, "it fell", "perf-sweep of abc")
    with leased("cpu", "work on two", 60):
        assert kgen("gpu") == 0
        said = capsys.readouterr().out
        assert "STANDIN-0" in said and "it fell" in said and "kgen gpu release STANDIN-0" in said
        assert "work on two" in " ".join(said.split()) and "in use by process" in " ".join(said.split())
        assert kgen("gpu", "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert [g["owner"] is None for g in shown["gpus"]] == [False, True]
        assert shown["quarantine"][0]["reason"] == "it fell"
    assert kgen("gpu", "release", "STANDIN-7") == 2
    assert "no single GPU in quarantine is 'STANDIN-7'; in quarantine: STANDIN-0" in capsys.readouterr().err
    assert kgen("gpu", "release", "STANDIN-0") == 0
    assert capsys.readouterr().out.startswith("released; GPU stand-in STANDIN-0") and not quarantine.listed()


def test_doctor_names_each_device_in_quarantine_and_the_way_out(
    bench: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(name: str) -> list[dict[str, object]]:
        kgen("doctor", "--json")  # whether the rest of this machine suffices is not asked here
        return [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == name]

    assert shown("GPU quarantine") == []
    record = quarantine.place(TWO, "it fell", "x")
    (check,) = shown("GPU quarantine")
    assert (check["ok"], check["needed"], check["found"]) == (False, False, str(record))
    assert str(check["fix"]).endswith("kgen gpu release STANDIN-1")
    (places.folder() / "STANDIN-1.quarantine").unlink()
    places.folder().rmdir()
    Path(os.environ[places.VARIABLE]).write_text("in the way")
    (check,) = shown("GPU folder")
    assert not check["ok"] and "is not a folder" in str(check["found"]) and places.VARIABLE in str(check["fix"])


def test_a_name_that_fits_two_devices_releases_none(bench: StandIn) -> None:
    for device in (ONE, TWO):
        quarantine.place(device, "why", "x")
    for name in ("STANDIN", "", "x"):
        with pytest.raises(ValueError, match="no single GPU"):
            quarantine.release(name)
    assert len(quarantine.listed()) == 2


def test_a_stop_for_want_of_devices_is_one_line_and_an_error_of_the_machine(bench: StandIn) -> None:
    record = Quarantine("GPU-1", "H200", "why", "x", "2026-01-01T00:00:00Z", "host", ("errors 3",))
    assert str(record) == "GPU H200 GPU-1 was put in quarantine at 2026-01-01T00:00:00Z: why (errors 3)"
    for kind in (NoDevice, DeviceLost):
        assert boundary.exit_code(kind(Path("x"), str(record))) == 4 and issubclass(kind, StoreError)
