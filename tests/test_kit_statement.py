"""A kit writes the statement of its evidence as it goes, and signs it when it is asked to."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.kits import ARCH, CANDIDATE, KEY, MACHINE, OP, RUN, make, point

from kgen.gates import kit_units
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.ingest import read
from kgen.gates.kit_host import FAILED, PASSED, RETRY, Host, parse
from kgen.gates.kit_units import GATE_NAMES, CarriedCandidate, Done, Runner, Unit
from kgen.gates.ssh_signatures import signer
from kgen.gates.statement import beside, check
from kgen.records import GateResult, Status, to_json


def gates(stop: str = "", numeric: Status = Status.PASS) -> dict[str, Runner]:
    """Deterministic gates; one of the name `stop` is killed."""

    def runner(gate: str) -> Runner:
        def run(op: object, unit: Unit, cache: Path, deadline: float) -> Done:
            if gate == stop:
                raise KeyboardInterrupt
            status = numeric if gate == "numeric" else Status.PASS
            result = GateResult(GATE_NAMES[gate], status, f"{gate}.{status}", "so it is", {}, 1.0, GATE_CONTRACT)
            return Done(result, tuple(point(a.record) for a in unit.artefacts) if gate == "perf" else (), None)

        return run

    return {gate: runner(gate) for gate in GATE_NAMES}


@pytest.fixture
def info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(kit_units, "environment", lambda: MACHINE)  # there is no GPU here to ask
    (tmp_path / "objects").mkdir()
    records = tuple(make(tmp_path / "objects", tokens).record for tokens in (1, 8))
    said = {"kit": "f" * 64, "run": RUN, "key": KEY.hex(), "op": OP.name, "op_contract": OP.contract_sha256()}
    return {**said, "gate_contract": GATE_CONTRACT, "candidates": [to_json(CarriedCandidate(CANDIDATE, records, ()))]}


def work(tmp_path: Path, info: dict[str, Any], table: dict[str, Runner], *more: str) -> tuple[int, Path]:
    args = parse(["--out", str(tmp_path / "e.json"), "--raw", str(tmp_path / "raw.xz"), *more])
    return Host(tmp_path, info, args, ARCH, table).gates(), tmp_path / "e.json"


def fits(out: Path) -> None:
    check("s", beside(out).read_bytes(), [p.evidence for p in read("e", out.read_bytes())])


def test_the_statement_fits_the_evidence_after_every_piece(tmp_path: Path, info: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, info, gates(stop="perf"))
    out = tmp_path / "e.json"
    fits(out)
    before = beside(out).read_bytes()
    assert b"unit-numeric" in before and b"perf-sweep" not in before
    assert work(tmp_path, info, gates())[0] == PASSED
    fits(out)
    assert b"perf-sweep" in beside(out).read_bytes()


def test_a_kit_signs_its_statement_and_drops_the_signature_of_an_older_one(
    tmp_path: Path, info: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    except FileNotFoundError:
        pytest.skip("needs ssh-keygen (openssh-client)")
    (tmp_path / "signers").write_text(f"gpu@example.org {key.with_suffix('.pub').read_text()}")
    code, out = work(tmp_path, info, gates(), "--sign", str(key), "--gates", "numeric")
    signature = beside(out).with_name("e.intoto.jsonl.sig")
    assert code == PASSED and f"signed: {signature}" in capsys.readouterr().out
    assert signer("s", beside(out).read_bytes(), signature.read_bytes(), tmp_path / "signers") == "gpu@example.org"
    assert work(tmp_path, info, gates())[0] == PASSED
    assert not signature.exists()


@pytest.mark.parametrize(("numeric", "code"), [(Status.PASS, RETRY), (Status.FAIL, FAILED)])
def test_a_key_that_cannot_sign_is_one_line_and_costs_no_evidence(
    numeric: Status, code: int, tmp_path: Path, info: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    done, out = work(tmp_path, info, gates(numeric=numeric), "--sign", str(tmp_path / "none"))
    assert done == code
    said = capsys.readouterr().err.strip()
    assert "could not be signed" in said and "\n" not in said
    fits(out)
