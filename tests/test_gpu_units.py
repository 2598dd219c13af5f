"""Pieces of work, in a run and in a kit, under the lease: a lost device costs a piece, the last one stops the work."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import sets
from support.kits import ARCH, CANDIDATE, KEY, MACHINE, RUN, SERVED, make
from support.kits import OP as KIT_OP
from support.loops import ListProposer
from support.proven import OP, proven

from kgen.gates import kit_host, kit_units
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.gpu import lease, places, quarantine, standin
from kgen.gates.gpu.lease import owner_of
from kgen.gates.gpu.quarantine import DeviceLost, NoDevice
from kgen.gates.gpu.standin import StandIn
from kgen.gates.kit_units import GATE_NAMES, CarriedCandidate, Done, Runner, Unit
from kgen.loop import proving
from kgen.loop.settings import read_settings
from kgen.loop.work import Work
from kgen.records import GateResult, Status, to_json


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "gpu"))
    with standin.in_place(StandIn(tmp_path, 2)) as found:
        yield found


class Losing:
    """Gates of a piece each; under the first `losses` of them the device is lost."""

    def __init__(self, losses: int) -> None:
        self.losses, self.owners = losses, list[tuple[str, str, int]]()

    def table(self) -> Mapping[str, Runner]:
        return {gate: self.runner(gate) for gate in GATE_NAMES}

    def runner(self, gate: str) -> Runner:
        def run(op: object, unit: Unit, cache: Path, deadline: float) -> Done:
            held = lease.current()
            assert held is not None
            owner = owner_of(held.device)
            assert owner is not None
            self.owners.append((held.device.uuid, owner.what, owner.pid))
            if len(self.owners) <= self.losses:
                record = quarantine.place(held.device, "it fell", unit.name)
                raise DeviceLost(places.folder(), str(record))
            return Done(GateResult(GATE_NAMES[gate], Status.PASS, f"{gate}.pass", "", {}, 1.0, GATE_CONTRACT))

        return run


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr(kit_units, "environment", sets.environment)
    monkeypatch.setattr(proving, "skip_without", lambda *_: None)
    made = proven(tmp_path / "runs", tmp_path / "cache")
    found = Work(made.run, OP, read_settings(made.run.info.settings, ""), ListProposer(), tmp_path / "cache")
    found.__dict__["arch"] = ARCH  # a GPU on paper
    return found


def test_in_a_run_a_lost_device_is_an_error_of_its_piece_and_the_next_goes_on_elsewhere(
    work: Work, bench: StandIn
) -> None:
    (folder,), gates = work.run.folders(), Losing(1)
    first = proving.prove(work, folder, "unit-numeric", gates.table())
    assert first.status is Status.ERROR and "GPU stand-in STANDIN-0 was put in quarantine at" in first.message
    assert proving.prove(work, folder, "unit-numeric", gates.table()).passed
    what = f"unit-numeric {ARCH} k3-tp8 t1-t16 of {folder.candidate().id[:12]}"
    assert gates.owners == [(f"STANDIN-{n}", what, os.getpid()) for n in (0, 1)]


def test_in_a_run_without_a_device_the_run_stops_and_can_be_resumed(work: Work, bench: StandIn) -> None:
    (folder,), gates = work.run.folders(), Losing(0)
    for device in bench.devices():
        quarantine.place(device, "it fell", "x")
    with pytest.raises(NoDevice, match="it fell"):
        proving.prove(work, folder, "unit-numeric", gates.table())
    assert not gates.owners
    quarantine.release("STANDIN-1")
    assert proving.prove(work, folder, "unit-numeric", gates.table()).passed


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(kit_units, "environment", lambda: MACHINE)
    objects = tmp_path / "kit" / "objects"
    objects.mkdir(parents=True)
    builds = tuple(make(objects, tokens, SERVED).record for tokens in (1, 8))
    return {
        "kit": "f" * 64,
        "run": RUN,
        "key": KEY.hex(),
        "op": KIT_OP.name,
        "op_contract": KIT_OP.contract_sha256(),
        "gate_contract": GATE_CONTRACT,
        "candidates": [to_json(CarriedCandidate(CANDIDATE, builds, ()))],
    }


def run_kit(kit: dict[str, Any], folder: Path, gates: Losing) -> int:
    args = kit_host.parse(["--out", str(folder / "e.json"), "--raw", str(folder / "r.xz"), "--gates", "numeric,model"])
    return kit_host.Host(folder / "kit", kit, args, ARCH, gates.table()).gates()


def test_in_a_kit_a_lost_device_costs_a_piece(kit: dict[str, Any], bench: StandIn, tmp_path: Path) -> None:
    gates = Losing(1)
    assert run_kit(kit, tmp_path, gates) == 4
    assert [device for device, *_ in gates.owners] == ["STANDIN-0", "STANDIN-1"]
    parts = [p["evidence"]["results"][0] for p in json.loads((tmp_path / "e.json").read_text())["parts"]]
    assert [(p["status"], p["code"]) for p in parts] == [("error", "kit.error"), ("pass", "model.pass")]
    assert "was put in quarantine" in parts[0]["message"]
    assert run_kit(kit, tmp_path, gates) == 0, "the piece is tried again"


def test_in_a_kit_without_a_device_the_work_stops_with_one_line(
    kit: dict[str, Any], bench: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for device in bench.devices():
        quarantine.place(device, "it fell", "x")
    monkeypatch.setattr(kit_host, "device_arch", lambda: ARCH)
    arguments = ["--out", str(tmp_path / "m.json"), "--raw", str(tmp_path / "m.xz")]
    assert kit_host.main(arguments, str(tmp_path / "kit"), {**kit, "runs": [kit]}) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kgen kit: GPU stand-in STANDIN-0 was put in quarantine at ") and "it fell" in line
