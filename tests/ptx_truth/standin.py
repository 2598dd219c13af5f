"""A result as a GPU host writes it, but made of the interpreter's own outputs: tries the way there, proves nothing.

cd tests && python -m ptx_truth.standin RESULT.json.xz
"""

import base64
import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptx_truth import host
from ptx_truth.build import Made, build
from ptx_truth.cases import MAKERS, make
from ptx_truth.entries import Case
from ptx_truth.interpret import interpret

MACHINE = {"gpu": "no GPU: the interpreter's own outputs", "driver": "none", "cuda": "none", "torch": "none"}


def record(case: Case, made: Made) -> dict[str, Any]:
    """Of one case, with the outputs of schedule 0."""
    data = {name: array.tobytes() for name, array in interpret(case, made, 0).outputs.items()}
    hashes = {name: hashlib.sha256(d).hexdigest() for name, d in data.items()}
    return {
        "key": case.key,
        "error": "",
        "seconds": 0.0,
        "repetitions": [hashes] * host.REPETITIONS,
        "outputs": {hashes[name]: base64.b64encode(d).decode() for name, d in data.items()},
        "counts": dict(Counter(launch.kernel for launch in made.launches)),
        "object_sha256": made.object_sha256,
        "ptx_sha256": made.ptx_sha256,
        "code": made.code,
        "source_sha256": case.source_sha256,
        "inputs_sha256": case.inputs_sha256,
    }


def result(cases: Mapping[str, Case], made: Mapping[str, Made]) -> dict[str, Any]:
    found = {key: record(case, made[key]) for key, case in cases.items()}
    return {"schema": "kgen.ptx-truth/1", "pack": "", "environment": MACHINE, "cases": found}


def main(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        return "usage: python -m ptx_truth.standin RESULT.json.xz"
    cases = {key: make(key) for key in MAKERS}
    host.write(Path(arguments[0]), result(cases, build(cases.values())))
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
