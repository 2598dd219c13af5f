"""Bad input of every kind: one clear line, the right exit code, no traceback, stdout empty or one JSON document."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from support.loops import BROKEN, OP, called, kgen, only_json, recording, source
from support.sets import fill, make_case

from kgen.cli import boundary
from kgen.cli.progress import Watcher
from kgen.gates.ingest import Refusal
from kgen.loop.events import Event
from kgen.promotion import Refused
from kgen.proposers.base import BudgetError, ProposerError, SetupError
from kgen.records import Candidate, Origin
from kgen.store import IntegrityError, LockBusy, Runs, StoreError


def nothing(home: Path) -> None:
    return None


def with_run(home: Path) -> None:
    recording(home / "runs", [source("a")])


def two_runs(home: Path) -> None:
    with_run(home)
    with_run(home)


def garbage(home: Path) -> None:
    (home / "evidence.json").write_bytes(b"\x00\xff not json")


def other_json(home: Path) -> None:
    (home / "evidence.json").write_text('{"schema": "kgen.run/1"}')


def foreign_run(home: Path) -> None:
    evidence = {"schema": "kgen.evidence-set/1", "run": "r", "kit": "k", "parts": []}
    (home / "evidence.json").write_text(json.dumps(evidence))


def damaged_run(home: Path) -> None:
    (recording(home / "runs", [source("a")]) / "run.json").write_text("{")


def damaged_candidate(home: Path) -> None:
    next(recording(home / "runs", [source("a")]).glob("0001-*/kernel.py")).write_text("changed")


def damaged_manifest(home: Path) -> None:
    fill(home / "set", make_case())
    path = home / "set" / "manifest.json"
    path.write_text(path.read_text().replace("own-key", "own-kez"))


def newer_manifest(home: Path) -> None:
    fill(home / "set", make_case())
    path = home / "set" / "manifest.json"
    path.write_text(path.read_text().replace("kgen.manifest/1", "kgen.manifest/99"))


def missing_object(home: Path) -> None:
    fill(home / "set", make_case())
    next((home / "set" / "objects").iterdir()).unlink()


def file_for_folder(home: Path) -> None:
    (home / "runs").write_text("in the way")


def bad_sources(home: Path) -> None:
    (home / "binary.py").write_bytes(b"\xff\xfe\x00")
    (home / "huge.py").write_bytes(b"#" * (2 << 20))


def files(home: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in home.rglob("*") if p.is_file() and p.name != ".lock"}


OPS = ["propose", "--op", OP.name]
# (what is there, command line, exit code, a word that the line must hold)
TABLE: list[tuple[Callable[[Path], None], list[str], int, str]] = [
    (nothing, ["propose"], 2, "--op"),
    (nothing, ["propose", "--op", "moe_shard"], 2, "moe_shared"),
    (nothing, ["frobnicate"], 2, "frobnicate"),
    (nothing, [*OPS, "--sed", "3"], 2, "--seed"),
    (nothing, [*OPS, "--seed", "three"], 2, "integer"),
    (nothing, [*OPS, "--rounds", "0"], 2, "rounds"),
    (nothing, [*OPS, "--candidates", "-1"], 2, "candidates"),
    (nothing, [*OPS, "--minutes", "0"], 2, "minutes"),
    (nothing, [*OPS, "--minutes", "nan"], 2, "minutes"),
    (nothing, [*OPS, "--max-usd", "-1"], 2, "max-usd"),
    (nothing, [*OPS, "--arch", "sm_12"], 2, "sm_90a"),
    (nothing, [*OPS, "--dims", "huge"], 2, "nano"),
    (nothing, [*OPS, "--tokens", "9"], 2, "bins"),
    (nothing, [*OPS, "--proposer", "oracle"], 2, "search"),
    (nothing, [*OPS, "--proposer", "openai"], 3, "OPENAI_API_KEY"),
    (nothing, [*OPS, "--proposer", "replay"], 2, "--replay"),
    (nothing, [*OPS, "--proposer", "search", "--replay", "latest"], 2, "--proposer replay"),
    (nothing, [*OPS, "--replay", "nope"], 2, "nope"),
    (nothing, [*OPS, "--proposer", "replay", "--replay", "nope"], 2, "nope"),
    (file_for_folder, [*OPS, "--proposer", "search"], 4, "runs"),
    (nothing, ["resume", "nope"], 2, "nope"),
    (nothing, ["resume", "latest"], 2, "none yet"),
    (two_runs, ["resume", "moe_shared"], 2, "2 runs"),
    (damaged_run, ["resume", "latest"], 5, "run.json"),
    (damaged_run, ["report", "latest"], 5, "run.json"),
    (damaged_candidate, ["report", "latest"], 5, "kernel.py"),
    (with_run, ["report", "latest", "--format", "pdf"], 2, "pdf"),
    (nothing, ["runs", "show", "../../etc"], 2, "etc"),
    (with_run, ["runs", "show", "latest", "--candidate", "9"], 2, "'9'"),
    (nothing, ["ops", "show", "nope"], 2, "attn_res"),
    (nothing, ["gate", "taste", "x.py", "--op", OP.name], 2, "unit-numeric"),
    (nothing, ["gate", "compile", "missing.py", "--op", OP.name], 2, "missing.py"),
    (bad_sources, ["gate", "compile", "binary.py", "--op", OP.name], 2, "UTF-8"),
    (bad_sources, ["gate", "compile", "huge.py", "--op", OP.name], 2, "larger"),
    (nothing, ["gate", "compile", ".", "--op", OP.name], 2, "directory"),
    (nothing, ["ingest", "missing.json"], 2, "missing.json"),
    (garbage, ["ingest", "evidence.json"], 2, "not JSON"),
    (other_json, ["ingest", "evidence.json"], 2, "kgen.run/1"),
    (foreign_run, ["ingest", "evidence.json"], 2, "no evidence"),
    (with_run, ["kit", "latest"], 1, "staged"),
    (with_run, ["kit", "latest", "--candidate", "7"], 2, "'7'"),
    (with_run, ["kit", "latest", "--python", "2.7"], 2, "there are 3.11, 3.12"),
    (with_run, ["kit", "latest", "--flavour", "cu9"], 2, "there are cu12, cu13"),
    (with_run, ["promote", "latest"], 1, "promote.verdict"),
    (nothing, ["promote", "latest"], 2, "none yet"),
    (nothing, ["rollback", OP.name], 1, "rollback.none"),
    (nothing, ["rollback", "nope"], 2, "nope"),
    (damaged_manifest, ["status"], 5, "checksum"),
    (newer_manifest, ["status"], 5, "upgrade"),
    (damaged_manifest, ["verify", "--no-rebuild"], 5, ""),
    (nothing, ["verify", "--no-rebuild", "--set", "typo"], 2, "no kernel set"),
    (missing_object, ["verify", "--no-rebuild"], 5, ""),
    (damaged_manifest, ["rollback", OP.name], 5, "checksum"),
    (nothing, ["rollback", OP.name, "--set", "builtin"], 4, "read-only"),
]


@pytest.mark.parametrize(
    ("prepare", "arguments", "code", "word"), TABLE, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_bad_input_gets_one_clear_line(
    prepare: Callable[[Path], None],
    arguments: list[str],
    code: int,
    word: str,
    as_json: bool,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(home)
    before = files(home)
    assert called(arguments + ["--json"] * as_json) == code
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("kgen: ")]
    assert "Traceback" not in out + err
    assert word in out + err
    if as_json:
        assert only_json(out)["schema"] in ("kgen.error/1", "kgen.verified/1")
    if "verify" not in arguments:
        assert len(lines) == 1 and len(lines[0]) < 400
        assert as_json or out == ""
    assert files(home) == before  # nothing lost, nothing left


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreError(Path("x"), "disk full"), 4),
        (LockBusy(Path("x"), "in use"), 4),
        (IntegrityError("damaged"), 5),
        (Refused("promote.stale", "old"), 1),
        (SetupError("no key"), 3),
        (ProposerError("down"), 4),
        (BudgetError("spent"), 4),
        (Refusal("altered", "x"), 5),
        (Refusal("format", "x"), 2),
        (Refusal("stale", "x"), 1),
        (ModuleNotFoundError("no langgraph"), 3),
        (PermissionError(13, "denied", "/x"), 4),
        (ValueError("a bug of ours"), 4),
        (ZeroDivisionError(), 4),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Exception) else str(v),
)
def test_exceptions_have_their_exit_code(error: Exception, code: int) -> None:
    assert boundary.exit_code(error) == code


def test_every_class_in_the_table_exists() -> None:
    import importlib

    for name in boundary.CODES:
        module, _, cls = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), cls), type), name


def test_an_unwritable_place_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = recording(home / "recorded", [source("a")])
    assert called([*OPS, "--proposer", "replay", "--replay", str(recorded), "--runs", "/proc/nowhere"]) == 4
    assert "/proc/nowhere" in capsys.readouterr().err


def test_a_failing_candidate_is_exit_1_and_says_where(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bad.py").write_text(BROKEN)
    assert called(["gate", "compile", "bad.py", "--op", OP.name, "--dims", "nano", "--json"]) == 1
    document = only_json(capsys.readouterr().out)
    assert document["result"]["status"] == "fail"
    assert document["candidate"] == Candidate(OP.name, BROKEN, Origin("")).id


def test_a_gpu_gate_without_a_gpu_is_exit_3_with_the_way_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "good.py").write_text(source("good"))
    arguments = ["gate", "unit-numeric", "good.py", "--op", OP.name, "--dims", "nano", "--tokens", "1"]
    assert called(arguments) == 3
    assert "kgen kit" in capsys.readouterr().out


def test_help_needs_no_heavy_import(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom kgen.cli.app import build\nfrom kgen.cli import boundary\n"
        "boundary.run(build(), ['propose', '--help'])\nboundary.run(build(), ['propose'])\n"
        "print([m for m in ('torch', 'cutlass', 'langgraph', 'openai') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip().endswith("[]")


def test_a_command_alone_shows_help_and_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert called([]) == 2
    assert "propose" in capsys.readouterr().err
    assert called(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kgen ")


def test_a_mailbox_that_nobody_answers_says_which_file_to_write(home: Path) -> None:
    done = kgen(home, *OPS, "--proposer", "mailbox", "--minutes", "0.02", "--json")
    assert done.returncode == 4
    assert "mailbox/0001-answer" in done.stderr
    assert only_json(done.stdout)["exit_code"] == 4
    assert Runs(home / "runs").list()[0].state == "interrupted"


class _Interrupts:
    """Its destructor is where a signal's exception gets lost."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_at_the_next_event() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    watch = Watcher(quiet=True)
    seen: list[str] = []
    app = typer.Typer()

    @app.command()
    def command() -> None:
        lost = _Interrupts()
        del lost
        seen.append("went on")
        watch(Event("say", text="x"))
        seen.append("not here")

    try:
        assert boundary.run(app, []) == boundary.INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == ["went on"]
