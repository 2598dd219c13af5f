"""Entry of a process that measures one point: `main([JOB.json, RESULT.json, TRACE])`; started by kgen.gates.layer.run.

TRACE, a recorded routing trace, is there where the job names one.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from kgen.gates.layer.check import Refused
from kgen.gates.layer.measure import measure
from kgen.gates.layer.points import Job
from kgen.gates.routing import recorded
from kgen.ops import REGISTRY
from kgen.records import from_json, to_json


def main(argv: Sequence[str]) -> int:
    """The result is a point, or why it is refused; anything else is a traceback and a status of its own."""
    job, result = from_json(Job, json.loads(Path(argv[0]).read_bytes())), Path(argv[1])
    if job.device == "cpu":
        torch.set_num_threads(1)  # a stand-in run: leave the other cores to their owners
    trace = recorded(Path(argv[2]), job.trace) if job.trace else None
    try:
        found = {"measured": to_json(measure(job, REGISTRY, trace=trace))}
    except Refused as reason:
        found = {"refused": str(reason)}
    result.write_text(json.dumps(found))
    return 0
