"""What a runner process leaves in its job folder."""

import functools
import json

from fuzz.guard import own_files, scratch
from fuzz.target import Target, one_line
from kgen.gates.runner import host
from kgen.records import canonical_json

PARTS = ("at", "result.json", "records.jsonl")
TENSORS = 4096  # bytes of tensors.bin
STATUSES = ("done", "fault", "crashed", "error")
WORDS = (
    b'{"offset": 0, "nbytes": 32, "dtype": "bfloat16", "shape": [16]}',
    b'"dtype": "float8_e4m3fn"',
    b'"offset": -1',
    b'"shape": [0]',
    b"1e400",
    b"NaN",
    b"[[[[",
    b"\n",
    b"\xff",
    b"\\ud800",
)


def _answer(data: bytes) -> None:
    """First line: exit status; then a line for `at`, one for the result, and the records."""
    first, _, rest = data.partition(b"\n")
    code = int(first) if first.removeprefix(b"-").isdigit() and len(first) < 5 else 0
    folder = scratch() / "runner"
    with own_files():
        folder.mkdir(exist_ok=True)
        for name, part in zip(PARTS, [*rest.split(b"\n", 2), b"", b"", b""], strict=False):
            (folder / name).write_bytes(part)
        (folder / "tensors.bin").write_bytes(b"\x3c" * TENSORS)
        (folder / "log").write_bytes(rest[:64])
    outcome = host.read(folder, max(-64, min(255, code)), "", 1.0)
    assert outcome.status in STATUSES
    assert (outcome.message == "") is (outcome.status == "done")
    for text in (outcome.where, outcome.message):
        if text:
            one_line(text, 2100)
    canonical_json([outcome.result, list(outcome.records)])
    for ref in host._references(outcome.records):
        tensor = outcome.tensor(ref)
        assert tensor.numel() * tensor.element_size() == ref["nbytes"] <= TENSORS


@functools.cache
def _answers() -> list[bytes]:
    ref = {"offset": 64, "nbytes": 24, "dtype": "float32", "shape": [2, 3]}
    at = {"where": "nano T=1 family normal step 0", "candidate": False}
    check = {
        "id": 0,
        "problem": "p",
        "outputs": [{"at": {"step": 0}, "tensors": {"y": ref}}],
        "findings": [["guard", "x"]],
    }
    point = {
        "point": 0,
        "column": "graph",
        "samples": {"candidate": [1.5, 1.25]},
        "outputs": {"y": ref},
        "states": [ref],
    }
    lines = json.dumps(check).encode() + b"\n" + json.dumps(point).encode() + b"\n"
    ends = [
        (b"0", {"done": True}, at),
        (b"0", {"fault": "step 3: CUDA error"}, at),
        (b"0", {"error": "OSError: x"}, at),
    ]
    whole = [b"\n".join([code, json.dumps(a).encode(), json.dumps(r).encode(), lines]) for code, r, a in ends]
    dead = json.dumps({**at, "candidate": True}).encode()
    return [*whole, b"-11\n" + dead + b"\n{}\n" + lines[:-20], b"-40\n\n\n"]


def targets() -> list[Target]:
    return [
        Target(
            "runner-answers",
            "gates.runner.host (what a job's folder holds)",
            "answers of jobs that ended well, failed and died",
            "an outcome whose every part can be stored and whose tensors are there, or an error of one line",
            "text",
            _answers,
            _answer,
            WORDS,
        )
    ]
