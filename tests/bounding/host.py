"""On the GPU host: times each kernel of the table and its variants, side by side, and reads the kernels' counters.

    python3 bounds.pyz [--out bounds.json] [--ops OP,OP] [--seconds 150] [--no-counters]

One worker process takes point after point: the kernel and all its variants over one rotation of buffers that L2 cannot
hold, in CUDA graphs, in random order within each repetition (kgen.gates.timing). A variant that faults or hangs is
marked, and the point is measured again without it. The result is written after every point; run again with the same
file, it goes on where it stopped. Counters come last, in what is left of --seconds. Not here: what the numbers mean.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptx_truth.host import converse

SCHEMA = "kgen.bounds/1"
START_SECONDS, EACH_SECONDS, ALL_SECONDS, COUNTER_SECONDS = 90.0, 45.0, 150.0, 40.0
TIMED_SHARE = 0.7  # of the seconds, after which counters begin
REPETITIONS, SEED = 30, 1
WORKER = "--worker"
DONE, USAGE, RETRY = 0, 2, 4
Record = dict[str, Any]


def main(arguments: Sequence[str], root: Path, info: Record, command: Sequence[str]) -> int:
    """Exit 0: all is measured; 4: something is missing, run again."""
    if arguments and arguments[0] == WORKER:
        return work(root, info, json.loads(arguments[1]))
    args = parsed(arguments)
    wanted = [op for op in args.ops.split(",") if op]
    points = [p for p in info["points"] if not wanted or p["op"] in wanted]
    if not points:
        return complain(
            f"no kernel of {args.ops}; there are {', '.join(sorted({p['op'] for p in info['points']}))}", USAGE
        )
    target, began = Path(args.out), time.monotonic()
    result = resumed(target, info["digest"])
    if result is None:
        return complain(f"{target} is not this file's result: choose another --out", USAGE)
    share = 1.0 if args.no_counters else TIMED_SHARE
    for record in gather([*command, WORKER], points, result, began + share * args.seconds):
        taken(result, points, record)
        write(target, result)
    if not args.no_counters:
        count(root, points, result, target, began + args.seconds)
    missing = open_points(points, result)
    say(f"{len(points) - len(missing)} of {len(points)} points are in {target}" + (", run it again" if missing else ""))
    return RETRY if missing else DONE


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bounds.pyz")
    parser.add_argument("--out", default="bounds.json")
    parser.add_argument("--ops", default="")
    parser.add_argument("--seconds", type=float, default=ALL_SECONDS)
    parser.add_argument("--no-counters", action="store_true")
    return parser.parse_args(list(arguments))


def resumed(target: Path, digest: str) -> Record | None:
    """What the file holds already; None where it is of something else."""
    if not target.exists():
        return {"schema": SCHEMA, "pack": digest, "environment": {}, "points": {}, "failed": {}, "counters": {}}
    try:
        found: Record = json.loads(target.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("pack") == digest else None


def open_points(points: Sequence[Record], result: Record) -> list[str]:
    """Keys of the points that are neither timed nor known to fail."""
    return [key for p in points if (key := p["key"]) not in result["points"] and key not in result["failed"]]


def gather(command: Sequence[str], points: Sequence[Record], result: Record, end: float) -> Iterator[Record]:
    """Records of the points that are missing. `command` and a job start a worker."""
    left = open_points(points, result)
    idle = 0
    while left and idle < 2 and time.monotonic() < end:
        at, before, why, told = ["", ""], len(left), "", False
        job = {"points": left, "skip": sorted(result["failed"])}
        for record in converse([*command, json.dumps(job)], START_SECONDS, EACH_SECONDS):
            at = record.get("at", at)
            if "failed" in record:
                told = True
                left = [key for key in left if key != record["failed"]]  # a whole point, or one of its variants
                yield record
            elif "environment" in record or "key" in record:
                left = [key for key in left if key != record.get("key")]
                yield record
            why = record.get("ended", why)
            if time.monotonic() > end:
                return
        if told:
            continue
        if why and at[0]:
            yield {"failed": f"{at[0]} {at[1]}".strip(), "error": why}
            left = left if at[1] else [key for key in left if key != at[0]]
        elif len(left) == before:
            idle += 1
            say(f"the worker did nothing: {why or 'no message'}")


def taken(result: Record, points: Sequence[Record], record: Record) -> None:
    """One record of the worker into the result, and a line about it."""
    if "environment" in record:
        result["environment"] = record["environment"]
    elif "failed" in record:
        result["failed"][record["failed"]] = record["error"]
        say(f"{record['failed']}: {record['error']}")
    else:
        point = next(p for p in points if p["key"] == record["key"])
        result["points"][point["key"]] = {**about(point), **record}
        for name, samples in record["us"].items():
            say(f"{point['key']:44} {name:20} {statistics.median(samples):8.2f} us, least {min(samples):.2f}")


def about(point: Record) -> Record:
    """What a reader of the result needs to know of the point."""
    variants = [{k: v for k, v in variant.items() if k != "spec"} for variant in point["variants"]]
    return {**{k: point[k] for k in ("op", "candidate", "problem", "tokens")}, "variants": variants}


def work(root: Path, info: Record, job: Mapping[str, Any]) -> int:
    """The worker: a line of JSON for the environment, before each variant, for each point, and at the end."""
    import torch

    from kgen.gates import timing
    from kgen.gates.environment import environment
    from kgen.records import to_json

    torch.zeros(1, device="cuda")
    timing.refuse_persisting_l2("cuda")
    say(json.dumps({"environment": to_json(environment())}))
    clock = timing.Clock("cuda")
    for point in info["points"]:
        if point["key"] in job["points"]:
            here = [point["key"], ""]
            try:
                for record in measure(root, point, job["skip"], clock):
                    here = record.get("at", here)
                    say(json.dumps(record))
            except (RuntimeError, OSError, ValueError, TypeError) as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
                say(json.dumps({"failed": " ".join(here).strip(), "error": text}))
                return 0  # the context may be lost: a new worker goes on
            torch.cuda.empty_cache()
    say(json.dumps({"done": True}))
    return 0


def measure(root: Path, point: Record, skip: Iterable[str], clock: Any) -> Iterator[Record]:
    """{"at": [key, variant]} before each variant's first call, then the point's samples, µs a call."""
    import torch

    from kgen.gates import timing
    from kgen.gates.runner import contestants, subject
    from kgen.ops import REGISTRY

    key, device, since = point["key"], clock.device, time.monotonic()
    yield {"at": [key, ""]}
    specs = {v["name"]: spec_of(root, v) for v in point["variants"] if f"{key} {v['name']}" not in skip}
    if point["variants"][0]["name"] not in specs:
        raise ValueError("the kernel itself cannot be timed")
    problem = next(iter(specs.values())).problem
    with torch.no_grad():
        turns = contestants.rotation(REGISTRY.get(problem.op), problem, SEED, device)
        calls, sides = timing.calls_for(len(turns.sets)), []
        for name, spec in specs.items():
            yield {"at": [key, name]}
            loaded = subject.load(spec, root / "cache" / "linked")
            own = [s.sibling(spec.workspaces) for s in turns.sets]
            replay = timing.capture([loaded.bind(s) for s in own] * (calls // len(own)), device)
            replay()
            if device != "cpu":
                torch.cuda.synchronize()
            sides.append(timing.Side(name, replay, calls))
        yield {"at": [key, ""]}
        times = timing.interleave(sides, REPETITIONS, clock, random.Random(SEED))
    found = {name: [round(us, 4) for us in samples] for name, samples in times.items()}
    facts = {"sets": len(turns.sets), "calls": calls, "warm": turns.warm}
    yield {"key": key, "us": found, **facts, "seconds": round(time.monotonic() - since, 2)}


def spec_of(root: Path, variant: Record) -> Any:
    """The variant as a runner loads it: its object lies in the unpacked file."""
    from kgen.gates.runner.job import LoadSpec
    from kgen.records import from_json

    spec = from_json(LoadSpec, variant["spec"])
    return replace(spec, object=str(root / "objects" / f"{spec.object_sha256}.o"))


def count(root: Path, points: Sequence[Record], result: Record, target: Path, end: float) -> None:
    """Counters of the kernels themselves, a profiled process a point, as long as there is time."""
    from kgen.gates import counters
    from kgen.records import to_json

    for point in points:
        found = result["counters"].get(point["key"], {})
        if found.get("kernels"):
            continue
        left = end - time.monotonic()
        if left < COUNTER_SECONDS / 4:
            say(f"{point['key']:44} counters: no time is left")
            return
        spec = spec_of(root, point["variants"][0])
        each = counters.take_spec(spec, cache=root / "cache" / "linked", seconds=min(left, COUNTER_SECONDS))
        result["counters"][point["key"]] = to_json(each)
        write(target, result)
        say(f"{point['key']:44} counters: {each.skipped or f'{len(each.kernels)} kernels'}")
        if each.skipped and not found and "not installed" in each.skipped:
            return


def write(target: Path, result: Record) -> None:
    fresh = target.with_name(target.name + ".part")
    fresh.write_text(json.dumps(result, indent=1, sort_keys=True), encoding="utf-8")
    fresh.replace(target)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(text: str, code: int) -> int:
    sys.stderr.write(f"bounds.pyz: {text}\n")
    return code
