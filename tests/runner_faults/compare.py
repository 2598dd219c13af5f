"""What a GPU host found of the kernels that fault or hang, against what must come of them; writes h200.json.

    cd tests && python -m runner_faults.compare RESULT.json              # what is committed
    cd tests && python -m runner_faults.compare RESULT.json FOLDER       # into a folder instead

Only a whole result of the kernels as they are now, in which all ended as is expected, is taken.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner_faults import host
from runner_faults.build import ARCH, build, facts
from runner_faults.kernels import EXPECTED, RIGHT, SOURCES

from kgen.gates.artefacts import Artefact
from kgen.records import sha256_text
from kgen.store.paths import cache_path

MEASURED = Path(__file__).with_name("h200.json")
AGAIN = "make runner-faults-gpu, on a machine with a GPU"


def complaint(found: Mapping[str, Any]) -> str:
    """The first thing about a result that is not as it must be, "" for nothing."""
    if found.get("schema") != host.SCHEMA:
        return "this is no result of these cases"
    if found["environment"]["arch"] != ARCH:
        return f"measured on {found['environment']['arch']}, not on {ARCH}"
    then = {key: line["source_sha256"] for key, line in found["kernels"].items()}
    if old := [key for key, text in SOURCES.items() if then.get(key) != sha256_text(text)]:
        return f"{old[0]} is another kernel now: {AGAIN}"
    if [s["kernel"] for s in found["steps"]] != host.order(list(SOURCES), RIGHT):
        return f"not every step was made: {AGAIN}"
    for step in found["steps"]:
        if said := wrong(step):
            return f"{step['kernel']}: {said}"
    return ""


def wrong(step: Mapping[str, Any]) -> str:
    """A fault is its kernel's, costs one probe, and leaves a device that is well and free."""
    got, named = (step["status"], step["code"]), EXPECTED[step["kernel"]]
    if got != named:
        return f"ended as {got[0]} {got[1]}, must be {named[0]} {named[1]}"
    if step["quarantined"] or not step["lease_is_free"]:
        return "left a device in quarantine, or a lease"
    probes = int(step["kernel"] != RIGHT)
    if len(step["said"]) != probes or not all(": well, " in line for line in step["said"]):
        return f"{len(step['said'])} lines about the device, must be {probes} of one that is well"
    return ""


def other_code(found: Mapping[str, Any], made: Mapping[str, Artefact]) -> list[str]:
    """Kernels that this compiler builds to other machine code than ran there."""
    now = {key: facts(key, artefact) for key, artefact in made.items()}
    then = found["kernels"]
    return [k for k, one in now.items() if one["compiler"] == then[k]["compiler"] and one["code"] != then[k]["code"]]


def main(arguments: Sequence[str]) -> str:
    if not 1 <= len(arguments) <= 2:
        return "usage: python -m runner_faults.compare RESULT.json [FOLDER]"
    text = Path(arguments[0]).read_text(encoding="utf-8")
    found = json.loads(text)
    if said := complaint(found):
        return f"red: {said}"
    if other := other_code(found, build(cache_path())):
        return f"red: {other[0]} is built to other machine code now: {AGAIN}"
    folder = Path(arguments[1]) if arguments[1:] else MEASURED.parent
    (folder / MEASURED.name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(found['steps'])} steps as expected on {found['environment']['gpu']}\n")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
