"""Runner processes: isolation, watching, and what the judge reads back."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kgen.gates.runner import host
from kgen.gates.runner.buffers import PATTERN, SECOND_POISON, BufferSet, guarded
from kgen.gates.runner.job import LoadSpec, stock_spec
from kgen.gates.runner.out import CandidateFault, Out
from kgen.gates.runner.rank import rank
from kgen.ops import REGISTRY
from kgen.records import RecordError, from_json, to_json

OP = REGISTRY.get("moe_shared")
PROBLEM = OP.problem(OP.pack.small, 2, "sm_90a")


def test_a_child_gets_none_of_the_callers_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("KGEN_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    child = host.child_environment()
    assert "secret" not in " ".join(child.values())
    assert child["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_job_folder_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with host.running("nothing", {}, deadline=60) as outcome:
        folder = outcome.folder
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert outcome.status == "error", "an unknown kind of job is our fault, not the candidate's"


def test_a_folder_that_cannot_hold_the_output_is_refused() -> None:
    with pytest.raises(OSError, match="no room"):
        host.private_folder(1 << 60)


PARENT = """
import json, subprocess, sys, time
from pathlib import Path
from kgen.gates.runner import host
from kgen.gates.runner.job import stock_spec
from kgen.ops import REGISTRY
from kgen.records import to_json

op = REGISTRY.get("moe_shared")
spec = stock_spec(op.problem(op.pack.small, 1, "sm_90a"), "hangs")
folder = host.private_folder()
job = {"kind": "rank", "items": [[0, to_json(spec)]], "cache": "/nowhere", "device": "cpu", "seed": 1, "repetitions": 1}
(folder / "job.json").write_text(json.dumps(job))
child = subprocess.Popen(host.child_command(folder / "job.json", folder), start_new_session=True)
print(child.pid, folder, flush=True)
time.sleep(60)
"""


def test_a_runner_dies_with_its_parent(tmp_path: Path) -> None:
    script = PARENT
    parent = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    deadline = time.monotonic() + 30
    while "hangs" not in host.json_of(Path(folder) / "at").get("where", "") and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the runner outlived its parent"
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)  # any other runner that starts may have removed it by now


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [
        torch.randn(3, 5).to(torch.bfloat16),
        torch.tensor([[float("nan"), -0.0, float("inf")]]),
        torch.arange(7, dtype=torch.int32),
        torch.randn(4, 4).t(),
    ]
    out = Out(tmp_path)
    refs = [out.tensor(v) for v in values]
    out.finish({})
    outcome = host.Outcome("done", "", "", tmp_path)
    for ref, value in zip(refs, values, strict=True):
        back = outcome.tensor(ref)
        assert back.dtype == value.dtype
        assert torch.equal(back.view(torch.uint8), value.contiguous().view(torch.uint8))


def test_a_truncated_tensor_is_an_error(tmp_path: Path) -> None:
    out = Out(tmp_path)
    ref = out.tensor(torch.ones(8))
    out.finish({})
    (tmp_path / "tensors.bin").write_bytes(b"\0" * 10)
    with pytest.raises(ValueError, match="10 of 32 bytes"):
        host.Outcome("done", "", "", tmp_path).tensor(ref)


def test_records_survive_a_death_in_the_middle_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert host._records(tmp_path / "records.jsonl") == ({"a": 1}, {"a": 2})


def left(folder: Path, files: dict[str, bytes], code: int = 0, limit: str = "") -> host.Outcome:
    """What the judge makes of a job folder with these files beside those of a run that was well."""
    out = Out(folder)
    ref = out.tensor(torch.ones(8))
    out.at("after family normal step 0")
    out.record({"id": 0, "outputs": [{"tensors": {"y": ref}}]})
    out.finish({"done": True})
    (folder / "log").write_text("")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return host.read(folder, code, limit, 1.0)


GOOD_REF = {"offset": 0, "nbytes": 32, "dtype": "float32", "shape": [8]}
UNREADABLE = {  # file -> what it holds, and a word of the one line
    "records: no JSON": ("records.jsonl", b'{"id": 0}\n{"id"\n{"id": 2}\n', "line 2 of records.jsonl"),
    "records: no object": ("records.jsonl", b"[1]\n", "list where an object belongs"),
    "records: an empty line": ("records.jsonl", b'{"id": 0}\n\n', "line 2"),
    "records: nested without end": ("records.jsonl", b"[" * 100_000 + b"]" * 100_000 + b"\n", "line 1"),
    "records: no UTF-8": ("records.jsonl", b'{"a": "\xff"}\n', "UTF-8"),
    "records: half a character": ("records.jsonl", b'{"a": "\\ud800"}\n', "Unicode"),
    "records: no number": ("records.jsonl", b'{"a": NaN}\n', "NaN"),
    "records: an endless number": ("records.jsonl", b'{"a": ' + b"9" * 5000 + b"}\n", "line 1"),
    "result: no JSON": ("result.json", b'{"done": tru', "JSONDecodeError"),
    "result: no object": ("result.json", b"3", "int where an object belongs"),
    "result: nested without end": ("result.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "cannot be read"),
    "tensors: cut": ("tensors.bin", b"\0" * 31, "tensors.bin holds 31 bytes"),
    "tensors: none": ("tensors.bin", b"", "tensors.bin holds 0 bytes"),
}
REFS = {  # a reference to what is no tensor of the file
    "beyond the file": {"offset": 4},
    "before the file": {"offset": -4},
    "unknown dtype": {"dtype": "float31"},
    "no dtype": {"dtype": "nn"},
    "dtype of no name": {"dtype": 7},
    "other shape": {"shape": [9]},
    "no shape": {"shape": 8},
    "negative sizes": {"shape": [-2, -4]},
    "half a number": {"nbytes": 32.0},
    "too many bytes": {"nbytes": 1 << 60, "shape": [1 << 58]},
}


def test_a_whole_answer_is_read_and_its_tensors_are_there(tmp_path: Path) -> None:
    outcome = left(tmp_path, {})
    assert (outcome.status, outcome.message, len(outcome.records)) == ("done", "", 1)
    assert torch.equal(outcome.tensor(outcome.records[0]["outputs"][0]["tensors"]["y"]), torch.ones(8))


@pytest.mark.parametrize(("code", "limit"), [(0, ""), (-11, ""), (-9, "no progress for 8 s")])
@pytest.mark.parametrize("case", UNREADABLE)
def test_an_answer_that_cannot_be_read_is_our_error_in_one_line(
    tmp_path: Path, case: str, code: int, limit: str
) -> None:
    name, data, word = UNREADABLE[case]
    outcome = left(tmp_path, {name: data}, code, limit)
    assert (outcome.status, outcome.records, outcome.result) == ("error", (), {})
    assert outcome.message.startswith("the runner left an answer that cannot be read: ") and word in outcome.message
    assert outcome.message.isprintable() and len(outcome.message) < 1200
    assert outcome.died is bool(code)


@pytest.mark.parametrize("case", REFS)
def test_a_reference_to_no_tensor_of_the_file_is_found_before_it_is_followed(tmp_path: Path, case: str) -> None:
    line = json.dumps({"id": 0, "states": [[{"y": {**GOOD_REF, **REFS[case]}}]]}).encode() + b"\n"
    outcome = left(tmp_path, {"records.jsonl": line})
    assert outcome.status == "error" and "cannot be read" in outcome.message
    good = json.dumps({"id": 0, "states": [[{"y": GOOD_REF}]]}).encode() + b"\n"
    (tmp_path / "records.jsonl").write_bytes(good)
    assert host.read(tmp_path, 0, "", 1.0).status == "done"


@pytest.mark.parametrize("data", [b"", b'{"where": "fam', b"[]", b"\xff", b'{"where": ' + b"[" * 100_000])
def test_a_place_that_was_cut_by_a_death_blames_nobody(tmp_path: Path, data: bytes) -> None:
    outcome = left(tmp_path, {"at": data, "result.json": b"{}"}, code=-9)
    assert (outcome.status, outcome.where) == ("error", "start")


@pytest.mark.parametrize(("code", "word"), [(-11, "signal SIGSEGV"), (-40, "signal 40"), (3, "exit code 3")])
def test_any_end_of_a_runner_has_a_name(tmp_path: Path, code: int, word: str) -> None:
    at = json.dumps({"where": "family\nnormal", "candidate": True}).encode()
    outcome = left(tmp_path, {"at": at, "result.json": b"{}"}, code)
    assert (outcome.status, outcome.message) == ("crashed", f"the runner ended with {word}, last at: family normal")


@pytest.mark.parametrize("word", ["fault", "error"])
def test_what_a_runner_says_is_one_line_of_some_length(tmp_path: Path, word: str) -> None:
    said = json.dumps({word: "first\nsecond\x1b[31m" + "x" * 9000}).encode()
    outcome = left(tmp_path, {"result.json": said})
    assert outcome.status == word and outcome.message.startswith("first second")
    assert outcome.message.isprintable() and len(outcome.message) < 2100


DIES = """
import os, sys, torch
from pathlib import Path
from kgen.gates.runner.out import Out

out = Out(Path(sys.argv[1]))
out.record({"y": out.tensor(torch.ones(8))})
out.at("step 1", candidate=True)
os.kill(os.getpid(), 11)
"""


def test_a_record_outlives_a_death_together_with_its_tensors(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", DIES, str(tmp_path)], check=False)
    outcome = host.read(tmp_path, done.returncode, "", 1.0)
    assert (outcome.status, len(outcome.records)) == ("crashed", 1), outcome.message
    assert torch.equal(outcome.tensor(outcome.records[0]["y"]), torch.ones(8))


def test_only_what_the_candidate_does_is_blamed_on_it(tmp_path: Path) -> None:
    out = Out(tmp_path)
    with pytest.raises(CandidateFault, match="step 3: CUDA error"), out.candidate("step 3", "cpu"):
        raise RuntimeError("CUDA error: misaligned address\nmore")
    with pytest.raises(torch.OutOfMemoryError), out.candidate("step 4", "cpu"):
        raise torch.OutOfMemoryError("our buffers")
    assert host.json_of(tmp_path / "at") == {"where": "step 4", "candidate": True}


def test_guards_catch_one_byte_on_either_side() -> None:
    for offset in (0, -1):
        buffer = guarded((3, 5), "bf16", "cpu")
        assert bool(buffer.intact())
        assert buffer.tensor.data_ptr() % 512 == buffer.raw.data_ptr() % 512
        buffer.raw[buffer.guard - 1 if offset else buffer.raw.numel() - buffer.guard] = PATTERN ^ 1
        assert not bool(buffer.intact())


def test_a_sibling_shares_everything_but_its_own_outputs_and_workspaces() -> None:
    base = BufferSet(OP, PROBLEM, "cpu", [("i32", (4,))])
    other = base.sibling([("i32", (4,))], own=["y"])
    base.load(OP.inputs(PROBLEM, "normal", 1, "cpu"))
    base.poison(SECOND_POISON)
    assert other.buffers["m"] is base.buffers["m"]
    assert other.buffers["y"] is not base.buffers["y"] and other.work[0] is not base.work[0]
    assert int(other.work[0].tensor.abs().sum()) == 0, "workspaces start zeroed"


def test_load_specs_survive_json() -> None:
    spec = LoadSpec(PROBLEM, "artefact", "/x/y.o", "ab" * 32, "kgen_entry", (("bf16", (2, 128)), ("i32", (1,))), "fma")
    assert from_json(LoadSpec, to_json(spec)) == spec
    with pytest.raises(RecordError, match="engine"):
        from_json(LoadSpec, {k: v for k, v in to_json(spec).items() if k != "engine"})


def test_ranking_marks_what_crashes_or_hangs_and_ranks_the_rest(tmp_path: Path) -> None:
    faults = ("", "zeros", "dies", "raises", "hangs")
    rows = rank([stock_spec(PROBLEM, fault) for fault in faults], cache=tmp_path, device="cpu", repetitions=3, stall=8)
    assert [row.status for row in rows] == ["ok", "ok", "crashed", "fault", "hung"]
    assert rows[0].rel_l2 == 0 and rows[1].rel_l2 == 1
    assert 0 < rows[0].us_best <= rows[0].us < 1e6
    assert "SIGSEGV" in rows[2].message and "illegal memory access" in rows[3].message


def test_every_kernel_is_compared_from_the_same_state_whatever_was_timed_before_it(tmp_path: Path) -> None:
    problem = REGISTRY.get("kda_core").problem("nano", 2, "sm_90a")
    rows = rank([stock_spec(problem)] * 2, cache=tmp_path, device="cpu", repetitions=2)
    assert [row.rel_l2 for row in rows] == [0, 0]
