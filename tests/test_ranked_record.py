"""benchmarks/ranked.py: what it takes of a ranking, what it refuses in a record; the committed record is sound."""

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.checkout import ROOT

MACHINE = {"gpu": "G", "driver": "1", "cuda": "2", "torch": "3", "python": "4", "sms": 132}
A, B = "a" * 64, "b" * 64
STATE, PLAIN = "mla_kv_append", "mla_out_gate"


@pytest.fixture(scope="module")
def ranked() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ranked", ROOT / "benchmarks" / "ranked.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(op: str) -> dict[str, Any]:
    """What --rank writes: the faster one first, here the second candidate of the run; one row without figures."""
    axes = {"cache": "bf16"} if op == STATE else {}
    problem = {"schema": "kgen.problem/1", "op": op, "dims": "k3-tp8", "tokens": 8, "arch": "sm_90a", "axes": axes}

    def row(candidate: str, us: float, tokens: int = 8, status: str = "ok") -> dict[str, Any]:
        spec = {"problem": {**problem, "tokens": tokens}, "design": "d", "object": "somewhere"}
        figures = {"us": us, "us_best": us, "stock_us": 9.0, "rel_l2": 0.5}
        return {"candidate": candidate, "spec": spec, "status": status, **figures, "message": ""}

    lost = {**row(A, float("inf"), 64, "lost"), "message": "no progress"}
    return {"run": "r", "environment": MACHINE, "rows": [row(B, 1.0), row(A, 2.0), lost]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, candidate in (("0001", A), ("0002", B)):
        place = tmp_path / f"{number}-{candidate[:12]}"
        place.mkdir()
        origin = {"detail": {"template": "t", "values": {"x": number}, "seed": 0}}
        (place / "origin.json").write_text(json.dumps(origin))
    return tmp_path


@pytest.mark.parametrize(("op", "kept"), [(STATE, [0.5, None]), (PLAIN, [0.5, 0.5])])
def test_a_distance_between_different_states_is_left_out(
    ranked: ModuleType, folder: Path, op: str, kept: list[float]
) -> None:
    run = ranked.taken(answer(op), folder)
    rows = [r for r in run["rows"] if r["status"] == "ok"]
    assert [r["candidate"] for r in rows] == [A[:12], B[:12]]  # in the run's order: A was timed first
    assert [r.get("rel_l2") for r in rows] == kept
    assert run["candidates"][B[:12]] == {"template": "t", "values": {"x": "0002"}}
    assert run["machine"] == {k: v for k, v in MACHINE.items() if k != "sms"}
    assert ranked.complaints({"runs": [run]}) == []


def test_a_point_without_figures_keeps_its_reason_and_the_file_is_plain_json(ranked: ModuleType, folder: Path) -> None:
    run = ranked.taken(answer(STATE), folder)
    (lost,) = (r for r in run["rows"] if r["status"] == "lost")
    assert lost["message"] == "no progress" and "us" not in lost
    text = ranked.text([run])
    assert json.loads(text, parse_constant=pytest.fail)["runs"] == [run] and "somewhere" not in text


def test_breaches_of_a_record_are_said(ranked: ModuleType, folder: Path) -> None:
    good = ranked.taken(answer(STATE), folder)

    def said(number: int, **change: object) -> str:
        run = copy.deepcopy(good)
        run["rows"][number] |= change
        return " ".join(ranked.complaints({"runs": [run]}))

    assert "compares different states" in said(1, rel_l2=0.1)
    assert "cannot be the median" in said(0, us_best=5.0)
    assert "has no such point" in said(0, point="mla_kv_append/k3-tp8/t8/sm_90a/cache=e5m2")
    assert "nothing says which values" in said(0, candidate="c" * 12)
    assert "has a message and no figures" in said(2, message="")


def test_a_run_that_is_taken_again_replaces_itself(ranked: ModuleType, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    record, file, runs = tmp_path / "record.json", tmp_path / "answer.json", tmp_path / "runs"
    for name, op in (("r", PLAIN), ("s", STATE)):
        (runs / name).symlink_to(folder)
        file.write_text(json.dumps({**answer(op), "run": name}))
        for _ in range(2):
            assert ranked.main(["take", str(file), "--runs", str(runs), "--record", str(record)]) == 0
    assert [run["run"] for run in json.loads(record.read_text())["runs"]] == ["s", "r"]  # by op


def test_the_committed_record_is_sound_and_names_no_place(ranked: ModuleType) -> None:
    assert ranked.main(["check"]) == 0
    text = ranked.RECORD.read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=pytest.fail)
    assert "/tmp" not in text and ranked.text(record["runs"]) == text
    stateful = {run["op"] for run in record["runs"] if ranked.has_state(run["op"])}
    assert stateful == {"kda_core", "attn_res", "mla_kv_append", "oproj_allreduce_residual"}
