"""Entry of a runner process: `python -I -m kgen.gates.runner JOB.json FOLDER`.

Runs one job and writes its files into FOLDER. Trusted code; candidates come in as audited objects only.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KINDS: Mapping[str, str] = {  # job kind -> module:function(job, out) -> result
    "numeric": "kgen.gates.runner.numeric:run",
    "perf": "kgen.gates.runner.perf:run",
    "decode": "kgen.gates.runner.decode_job:run",
    "rank": "kgen.gates.runner.rank:run",
    "counted": "kgen.gates.runner.counted:run",
    "ranked": "kgen.gates.ranks.interpreted:run",
}
PR_SET_PDEATHSIG = 1


def main(argv: list[str], parent: int = 0) -> int:
    """`parent`: the process that this one must not outlive, where the job does not say."""
    from kgen.gates.runner.out import CandidateFault, Out

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    job: dict[str, Any] = json.loads(Path(argv[0]).read_text())
    if (parent or job.get("parent", os.getppid())) != os.getppid():
        return 1  # it died before it could take this process with it
    if job.get("device") == "cpu":
        import torch

        torch.set_num_threads(1)  # a stand-in run: leave the other cores to their owners
    out = Out(Path(argv[1]))
    out.at("start")
    module, function = KINDS[job["kind"]].split(":")
    run: Callable[[dict[str, Any], Out], dict[str, Any]] = getattr(importlib.import_module(module), function)
    try:
        result = {"done": True, **run(job, out)}
    except CandidateFault as fault:
        result = {"fault": str(fault)}
    except Exception as error:  # noqa: BLE001  process boundary: the judge gets the reason, the log the traceback
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {str(error).strip()[:600]}"}
    out.finish(result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
