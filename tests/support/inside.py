"""A runner's job without a process of its own: the same code, the same files. For tests of what a judge makes of it.

    patch.setattr(perf, "running", in_this_process)

Not covered: everything that a process can do (die, hang, be killed), and how errors of kgen's own are told.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from kgen.gates.runner import host
from kgen.gates.runner.__main__ import KINDS
from kgen.gates.runner.out import CandidateFault, Out


@contextmanager
def in_this_process(kind: str, job: Mapping[str, Any], **limits: float) -> Iterator[host.Outcome]:
    """As `host.running`."""
    module, function = KINDS[kind].split(":")
    run = getattr(import_module(module), function)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log").write_text("")
        out = Out(folder)
        try:
            out.finish({"done": True, **run(json.loads(json.dumps(job)), out)})
        except CandidateFault as fault:
            out.finish({"fault": str(fault)})
        yield host.read(folder, 0, "", 0.0)
