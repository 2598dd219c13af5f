"""The commands in the order a user meets them; with --json, stdout holds one document and nothing else."""

import json
import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.loops import (
    BROKEN,
    COMMAND,
    OP,
    SMALL,
    called,
    cold,
    environment,
    kgen,
    only_json,
    recording,
    source,
    the_run,
)
from support.proven import Proven, proven

from kgen.gates.contract import GATE_CONTRACT
from kgen.records import Status
from kgen.store import KernelSet


@pytest.fixture
def made(home: Path) -> Proven:
    return proven(home / "runs", home / "cache")


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    """The document that a command prints with --json."""
    capsys.readouterr()
    assert called([*arguments, "--json"]) == code
    document = only_json(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_evidence_becomes_a_promoted_kernel_that_can_be_undone(
    home: Path, made: Proven, capsys: pytest.CaptureFixture[str]
) -> None:
    made.evidence(home)
    assert called(["ingest", "evidence.json"]) == 0
    out, err = capsys.readouterr()
    assert "promotable" in err and f"kgen promote {made.run.id}" in out
    document = said(capsys, "promote", made.run.id)
    assert document["schema"] == "kgen.promoted/1"
    manifest = KernelSet(home / "set").manifest()
    assert manifest.seq == 1 and manifest.promotions[0].trust == "own-key"
    assert len(manifest.champions) == 3  # the fourth point left the envelope
    assert called(["promote", made.run.id]) == 0  # the same again changes nothing
    assert KernelSet(home / "set").manifest() == manifest
    assert len(said(capsys, "status")["points"]) == 3  # type: ignore[arg-type]
    assert said(capsys, "verify", "--no-rebuild")["ok"] is True
    assert said(capsys, "rollback", OP.name)["undone"] == 1
    assert said(capsys, "status")["points"] == []


def test_foreign_evidence_needs_trust_and_stays_marked(
    home: Path, made: Proven, capsys: pytest.CaptureFixture[str]
) -> None:
    made.evidence(home, key=b"")
    assert called(["ingest", "evidence.json"]) == 1
    assert "--trust" in capsys.readouterr().err
    assert called(["ingest", "evidence.json", "--trust"]) == 0
    assert called(["promote", made.run.id]) == 1
    assert called(["promote", made.run.id, "--trust"]) == 0
    assert KernelSet(home / "set").manifest().promotions[0].trust == "self-reported"


def test_altered_evidence_is_an_integrity_failure_and_changes_nothing(home: Path, made: Proven) -> None:
    path = made.evidence(home)
    path.write_text(path.read_text().replace('"it pass"', '"it passed"'))
    before = {p: p.read_bytes() for p in made.run.path.rglob("*.json")}
    assert called(["ingest", "evidence.json"]) == 5
    assert {p: p.read_bytes() for p in made.run.path.rglob("*.json")} == before


def test_evidence_of_a_failure_refuses_the_candidate(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = proven(home / "runs", home / "cache", Status.FAIL)
    made.evidence(home)
    document = said(capsys, "ingest", "evidence.json", code=1)
    assert document["outcome"] == "refused"
    assert called(["promote", made.run.id]) == 1
    assert not (home / "set").exists()


def test_a_kit_is_written_and_names_what_to_do_with_it(
    home: Path, made: Proven, kit_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kgen.gates import kit

    (home / "cache" / "kit").symlink_to(kit_cache / "kit")
    monkeypatch.setattr(kit, "tvm_ffi_pieces", lambda pythons, cache: [])  # wheels come from a registry
    monkeypatch.setattr(kit, "runtime_pieces", lambda flavours, cache: [])
    assert called(["kit", made.run.id, "-o", "kit.pyz"]) == 0
    out = capsys.readouterr().out
    assert "python kit.pyz" in out and "kgen ingest evidence.json" in out
    with zipfile.ZipFile(home / "kit.pyz") as archive:
        table = json.loads(archive.read("kit.json"))
    (line,) = table["runs"]
    assert line["run"] == made.run.id and len(line["candidates"][0]["builds"]) == 4
    assert (home / "kit.pyz").stat().st_mode & 0o077 == 0


def test_a_kit_may_be_for_some_pythons_and_cuda_majors_only(
    home: Path, made: Proven, kit_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kgen.gates import kit

    (home / "cache" / "kit").symlink_to(kit_cache / "kit")
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(kit, "tvm_ffi_pieces", lambda pythons, cache: asked.append(pythons) or [])
    monkeypatch.setattr(kit, "runtime_pieces", lambda flavours, cache: asked.append(flavours) or [])
    assert called(["kit", made.run.id, "-o", "kit.pyz", "--python", "3.12", "--flavour", "cu13"]) == 0
    assert asked == [("3.12",), ("cu13",)]
    with zipfile.ZipFile(home / "kit.pyz") as archive:
        table = json.loads(archive.read("kit.json"))
    assert (table["pythons"], table["flavours"]) == (["3.12"], ["cu13"])


def test_a_kit_whose_objects_are_gone_says_how_to_get_them(
    home: Path, made: Proven, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (home / "cache" / "objects").iterdir():
        path.unlink()
    assert called(["kit", made.run.id]) == 5
    assert "builds it again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (["ops"], "kgen.ops/1"),
        (["ops", "show", "attn_res"], "kgen.op/1"),
        (["runs"], "kgen.runs/1"),
        (["runs", "show", "latest"], "kgen.report/1"),
        (["runs", "show", "latest", "--candidate", "1"], "kgen.candidate/1"),
        (["report", "latest"], "kgen.report/1"),
        (["status"], "kgen.status/1"),
        (["verify", "--no-rebuild"], "kgen.verified/1"),
        (["doctor"], "kgen.doctor/1"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_json_is_one_document_with_a_schema(
    arguments: list[str], schema: str, home: Path, made: Proven, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, *arguments)["schema"] == schema
    assert called(arguments) == 0  # and there is a form for people
    assert capsys.readouterr().out.strip()


def test_a_report_goes_to_stdout_or_to_a_file(home: Path, made: Proven, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["report", made.run.id]) == 0
    out = capsys.readouterr().out
    assert out.startswith("<!-- kgen-report")
    assert called(["report", made.run.id, "--out", "r.md"]) == 0
    assert (home / "r.md").read_text() == out
    assert capsys.readouterr().out == ""


def test_propose_shows_progress_on_stderr_and_the_summary_on_stdout(tmp_path: Path) -> None:
    recorded = recording(tmp_path / "recorded", [source("a"), BROKEN])
    arguments = ("propose", "--op", OP.name, "--proposer", "replay", "--replay", str(recorded), *SMALL)
    done = cold(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    run = the_run(tmp_path)
    assert "quick tier" in done.stderr and "full matrix" in done.stderr and "compile.syntax" in done.stderr
    assert "quick tier" not in done.stdout
    assert str(run.path / "report.md") in done.stdout and f"kgen kit {run.id} -o kit.pyz" in done.stdout
    assert (run.path / "report.md").read_text().startswith("<!-- kgen-report")
    assert "\x1b" not in done.stdout + done.stderr  # plain lines without a terminal
    again = kgen(tmp_path, *arguments, "--json")
    assert again.returncode == 0
    assert only_json(again.stdout)["outcome"] == "staged"
    assert "0 builds made" in again.stderr and "taken from the cache" in again.stderr


def test_a_run_without_a_survivor_is_exit_1_with_its_reasons(tmp_path: Path) -> None:
    recorded = recording(tmp_path / "recorded", [BROKEN])
    which = ("--proposer", "replay", "--replay", str(recorded))
    done = kgen(tmp_path, "propose", "--op", OP.name, *which, *SMALL, "--quiet")
    assert done.returncode == 1
    assert "compile.syntax" in done.stdout
    assert done.stderr == ""


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f'"$0" -I -c "{COMMAND[3]}" ops show moe_shared | head -1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, COMMAND[0]],
        capture_output=True,
        text=True,
        env={**environment(tmp_path), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("moe_shared")


def test_evidence_of_older_rules_is_one_plain_line_with_the_next_command(
    home: Path, made: Proven, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.evidence(home)
    called(["ingest", "evidence.json"])
    called(["promote", made.run.id])
    capsys.readouterr()
    assert called(["status"]) == 0 and "stale:" not in capsys.readouterr().out
    assert said(capsys, "status")["stale"] == []
    monkeypatch.setattr("kgen.gates.contract.GATE_CONTRACT", GATE_CONTRACT + 1)
    assert called(["status"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "is stale:" in line)
    assert f"judged under gate contract {GATE_CONTRACT}, now {GATE_CONTRACT + 1}; it serves 3 points on" in line
    assert line.endswith(f"next: kgen propose --op {OP.name} --replay {made.run.id}")
    assert said(capsys, "status")["stale"] == [line]
    assert called(["promote", made.run.id]) == 1  # and what is stale promotes no more
    assert "stale" in capsys.readouterr().err
    made.run.path.rename(home / "gone")
    assert called(["status"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "is stale:" in line)
    source = next((home / "set" / OP.name).glob("*.py"))
    assert line.endswith(f"--proposer mailbox --candidates 1, answered with {source}")
