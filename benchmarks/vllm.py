#!/usr/bin/env python3
"""Stock vLLM beside vLLM with promoted kernels on one H200: what a run left, as this repository keeps it.

    PYTHONPATH=tests python benchmarks/vllm.py take FOLDER [--at COMMIT]
    PYTHONPATH=tests python benchmarks/vllm.py apart BASE.json OFF.json     # of vllm_proof.py: two processes

FOLDER is what `tests/support/vllm_one.py --out FOLDER/one` and, where they were run, `--damage --out FOLDER/damage` and
`--features --out FOLDER/features` wrote. What was broken on purpose is kept of an earlier run where this one has none.
The record goes to vllm_h200.json, the kernels of all profiled steps to vllm_h200.events.json.xz; docs/vllm.md and
README.md are made from the record (`python -m kernel_pages`). Times are spans within graph replays by torch.profiler.
Where a run has no rounds by turns, they are of one profiled step a side, stock's first; the record says which.
"""

import argparse
import json
import lzma
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.vllm_proof import isolation
from support.vllm_spans import measured, summary

from kgen.serve.vllm.guards import Refusal, Stage, message

HERE = Path(__file__).resolve().parent
RECORD, EVENTS = HERE / "vllm_h200.json", HERE / "vllm_h200.events.json.xz"
SCHEMA = "kgen.vllm-proof/1"
KEPT = ("environment", "plugin", "trigger", "isolation", "stock_repeats", "conv_states", "agreement", "logits", "churn")
APART = "isolation_in_two_processes"
SIDES = {"stock": "base_events.json", "on": "on_events.json"}
FOLDERS = re.compile(r"(?<![\w/.])/(?:[\w.-]+/)*(?=set-)")  # of the broken copies of a set
RECORDED = ("arch", "captured", "outside_decode_graphs", "seats", "vllm")


def once(events: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Spans and host steps of the one profiled step of each batch size and side."""
    rounds = [
        measured(0, run["batch"], side, run["profile"]["events"], run["step_s"], config)
        for side, report in events.items()
        for run in report["runs"]
    ]
    return summary(rounds)


def reduced(
    one: Mapping[str, Any],
    damage: Mapping[str, Any],
    events: Mapping[str, Any],
    commit: str,
    features: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a run."""
    plan = one["record"]
    refused = [Refusal(Stage(r["stage"]), r["op"], r["reason"]) for r in plan["refusals"]]
    turns = one.get("times")
    return {
        "schema": SCHEMA,
        "commit": commit,
        **{key: one[key] for key in KEPT if key in one},
        "plan": {key: plan[key] for key in RECORDED},
        "refused": message(refused),
        "by_turns": bool(turns),
        "times": turns or once(events, one["environment"]["config"]),
        "damage": _cases(damage),
        **({"features": _cases(features)} if features else {}),
    }


def _cases(found: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that are cases, without the folders of the machine that ran them."""
    cases = {n: c for n, c in found.items() if isinstance(c, dict) and ("ok" in c or "failed" in c)}
    bare: dict[str, Any] = json.loads(FOLDERS.sub("", json.dumps(cases)))
    return bare


def read_events() -> dict[str, Any]:
    """Side -> its report: tokens, host steps and kernels by batch size."""
    found: dict[str, Any] = json.loads(lzma.decompress(EVENTS.read_bytes()))
    return found


def take(folder: Path, commit: str) -> None:
    one = json.loads((folder / "one" / "one.json").read_text())
    broken, also = (folder / part / f"{part}.json" for part in ("damage", "features"))
    damage = json.loads(broken.read_text()) if broken.exists() else {}
    events = {side: json.loads((folder / "one" / name).read_text()) for side, name in SIDES.items()}
    features = json.loads(also.read_text()) if also.exists() else {}
    EVENTS.write_bytes(lzma.compress(json.dumps(events).encode(), preset=9))
    made = reduced(one, damage, events, commit, features)
    if APART in (before := json.loads(RECORD.read_text()) if RECORD.exists() else {}):
        made[APART] = before[APART]  # of other runs: `apart` replaces it
    if not damage and "damage" in before:
        made |= {"damage": before["damage"], "damage_at": before.get("damage_at", before["commit"])}
    RECORD.write_text(json.dumps(made, indent=1) + "\n")


def apart(base: Path, off: Path) -> None:
    """Add what `vllm_proof.py` found in two processes: without the plugin, and with it but without its key."""
    reports = [json.loads(p.read_text()) for p in (base, off)]
    record = json.loads(RECORD.read_text())
    batches = [run["batch"] for run in reports[0]["runs"]]
    record[APART] = {"batches": batches, "differences": isolation(*reports)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, dest="part")
    taking = parts.add_parser("take", help="make the record of a run")
    taking.add_argument("folder", type=Path)
    taking.add_argument("--at", default="", metavar="COMMIT", help="of the kgen that ran")
    adding = parts.add_parser("apart", help="add the comparison of two processes")
    adding.add_argument("reports", type=Path, nargs=2, metavar="REPORT.json")
    a = parser.parse_args(argv)
    if a.part == "take":
        take(a.folder, a.at)
    else:
        apart(*a.reports)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
