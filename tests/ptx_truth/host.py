"""On the GPU host: runs every case three times and writes what came out. Standard library, torch, and kgen.serve.

One worker process runs case after case; it is killed when a case takes too long, and a new one takes over where it
ended. A case that fails is recorded with its error. The result is written after every case. Not here: any judgement.
"""

import base64
import ctypes
import hashlib
import json
import lzma
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

REPETITIONS = 3
START_SECONDS, CASE_SECONDS, ALL_SECONDS = 90.0, 20.0, 150.0
WORKER = "--worker"
USAGE = "usage: python3 FILE.pyz RESULT.json.xz [CASE ...]\n"
TORCH = {"bf16": "bfloat16", "f32": "float32", "i32": "int32", "u8": "uint8"}
Record = dict[str, Any]
Say = Callable[[str], None]


def main(arguments: Sequence[str], root: Path, info: Record, command: Sequence[str]) -> int:
    known = {case["key"]: case for case in info["cases"]}
    if arguments and arguments[0] == WORKER:
        return work(root, [known[key] for key in arguments[1:]])
    if not arguments or arguments[0].startswith("-") or (strange := [k for k in arguments[1:] if k not in known]):
        unknown = f"no case {strange[0]}; there are {', '.join(known)}\n" if len(arguments) > 1 else ""
        sys.stderr.write(USAGE + unknown)
        return 2
    target, keys = Path(arguments[0]), list(arguments[1:]) or list(known)
    result: Record = {"schema": "kgen.ptx-truth/1", "pack": info["digest"], "environment": {}, "cases": {}}
    for record in gather([*command, WORKER], keys, say):
        if "environment" in record:
            result["environment"] = record["environment"]
        else:
            result["cases"][record["key"]] = {**about(known[record["key"]]), **record}
        write(target, result)
    failed = [k for k, r in result["cases"].items() if r["error"]]
    say(f"{len(keys) - len(failed)} of {len(keys)} cases ran; {target} has {target.stat().st_size} bytes")
    return 1 if failed else 0


def about(case: Record) -> Record:
    """What the comparison needs to know that it speaks of the same things."""
    return {name: case[name] for name in ("object_sha256", "ptx_sha256", "code", "source_sha256", "inputs_sha256")}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write(target: Path, result: Record) -> None:
    fresh = target.with_name(target.name + ".part")
    fresh.write_bytes(lzma.compress(json.dumps(result, sort_keys=True).encode()))
    fresh.replace(target)


def gather(
    command: Sequence[str],
    keys: Sequence[str],
    say: Say,
    start: float = START_SECONDS,
    each: float = CASE_SECONDS,
    whole: float = ALL_SECONDS,
) -> Iterator[Record]:
    """Records of all cases in order, and the environment first. `command` and keys start a worker."""
    end, left = time.monotonic() + whole, list(keys)
    while left:
        if time.monotonic() > end:
            for key in left:
                yield failure(key, f"not run: {whole:g} s are over", say)
            return
        why = ""
        for record in converse([*command, *left], start, each):
            if "ended" in record:
                why = record["ended"]
                continue
            if "key" in record:
                left.remove(record["key"])
                said = record["error"] or f"{len(set(map(str, record['repetitions'])))} distinct of {REPETITIONS}"
                say(f"{record['key']}: {said}, {record['seconds']:.2f} s")
            yield record
        if left and why:  # of the case that the worker was at
            yield failure(left.pop(0), why, say)


def failure(key: str, why: str, say: Say) -> Record:
    say(f"{key}: {why}")
    return {"key": key, "error": why, "seconds": 0.0, "repetitions": [], "outputs": {}, "counts": {}}


def converse(command: Sequence[str], start: float, each: float) -> Iterator[Record]:
    """Lines of one worker as records; {"ended": why} where it did not come to its end."""
    worker = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    lines: queue.Queue[str] = queue.Queue()
    errors: list[str] = []

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put("")

    threads = [
        threading.Thread(target=read, daemon=True),
        threading.Thread(target=lambda: errors.extend(worker.stderr or ()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    allowed, finished = start, False
    try:
        while True:
            try:
                line = lines.get(timeout=allowed)
            except queue.Empty:
                yield {"ended": f"killed after {allowed:g} s"}
                return
            if not line:
                break
            if line.startswith("{"):
                record = json.loads(line)
                finished = "done" in record
                if not finished:
                    yield record
                allowed = each
    finally:
        if worker.poll() is None and not finished:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    if not finished:
        threads[1].join(5)
        last = next((e.strip() for e in reversed(errors) if e.strip()), "no message")
        yield {"ended": f"the worker died with status {worker.returncode}: {last[:300]}"}


def work(root: Path, cases: Sequence[Record]) -> int:
    """The worker: one line of JSON for the environment, for each case, and at the end."""
    import torch

    from kgen.gates.environment import environment
    from kgen.records import to_json

    torch.zeros(1, device="cuda")
    say(json.dumps({"environment": to_json(environment())}))
    for case in cases:
        started = time.monotonic()
        try:
            found = measure(root, case)
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            say(json.dumps({**failure(case["key"], f"{type(error).__name__}: {error}"[:600], lambda _: None)}))
            if "cuda" in str(error).lower():
                break  # the context may be lost: a new worker goes on
            continue
        say(json.dumps({"key": case["key"], "error": "", "seconds": time.monotonic() - started, **found}))
    say(json.dumps({"done": True}))
    return 0


def measure(root: Path, case: Record) -> Record:
    """Outputs by hash, and which hash each output had in each repetition."""
    from kgen.serve.launcher import Launcher
    from kgen.serve.link import link
    from kgen.serve.runtime import find_runtime

    runtime = find_runtime()
    path = root / "objects" / f"{case['object_sha256']}.o"
    launcher = Launcher(link(path, case["object_sha256"], root / "linked", runtime), case["function"], runtime)
    repetitions, outputs = [], {}
    counts: Record = {}
    for _ in range(REPETITIONS):
        launcher.reset_counts()
        found = once(root, case, launcher)
        counts = launcher.counts()
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
        outputs.update({hashes[name]: base64.b64encode(data).decode() for name, data in found.items()})
        repetitions.append(hashes)
    return {"repetitions": repetitions, "outputs": outputs, "counts": counts}


def once(root: Path, case: Record, launcher: Callable[..., None]) -> dict[str, bytes]:
    """All calls on fresh buffers."""
    import torch

    tensors = {}
    for name, dtype, shape, sha256 in case["tensors"]:
        data = bytearray((root / "inputs" / sha256).read_bytes())
        flat = torch.frombuffer(data, dtype=torch.uint8).to("cuda")
        tensors[name] = flat.view(getattr(torch, TORCH[dtype])).view(shape)
    spare = [
        torch.zeros(shape, dtype=getattr(torch, TORCH[dtype]), device="cuda") for dtype, shape in case["workspaces"]
    ]
    torch.cuda.synchronize()
    for call in case["calls"]:
        scalars = [int(value) if dtype == "i32" else float(value) for dtype, value in call]
        launcher(*tensors.values(), *scalars, *spare)
    torch.cuda.synchronize()
    kept = {name: tensors[name].cpu().contiguous() for name in case["outputs"]}
    return {name: ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) for name, t in kept.items()}
