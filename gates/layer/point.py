"""Entry of a process that measures one point: `main([JOB.json, RESULT.json])`; started by kgen.gates.layer.run."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from kgen.gates.layer.check import Refused
from kgen.gates.layer.measure import measure
from kgen.gates.layer.points import Job
from kgen.ops import REGISTRY
from kgen.records import from_json, to_json


def main(argv: Sequence[str]) -> int:
    """The result is a point, or why it is refused; anything else is a traceback and a status of its own."""
    job, result = from_json(Job, json.loads(Path(argv[0]).read_bytes())), Path(argv[1])
    if job.device == "cpu":
        torch.set_num_threads(1)  # a stand-in run: leave the other cores to their owners
    try:
        found = {"measured": to_json(measure(job, REGISTRY))}
    except Refused as reason:
        found = {"refused": str(reason)}
    result.write_text(json.dumps(found))
    return 0
