"""Entry of one rank's process: `python -I ... kgen.gates.ranks.worker JOB.json FOLDER`. Trusted code.

Candidates come in as audited objects only. It writes the files of kgen.gates.runner.out into FOLDER and ends without
the interpreter's clean-up, which may wait for peers that are gone.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS: Mapping[str, str] = {  # kind of a part -> module:function(bench) -> result
    "probe": "kgen.gates.ranks.probe:run",
    "check": "kgen.gates.ranks.check:run",
    "endure": "kgen.gates.ranks.endure:run",
    "time": "kgen.gates.ranks.timed:run",
    "lose": "kgen.gates.ranks.lose:run",
}
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bench:
    """What a part has to work with on one rank. `device`: "cuda:N" or "cpu"."""

    job: Mapping[str, Any]
    rank: int
    ranks: int
    device: str
    meeting: Any
    out: Any

    @property
    def cache(self) -> Path:
        return Path(self.job["cache"])

    def transport(self) -> Any:
        from kgen.gates.ranks.transport import open_transport

        return open_transport(str(self.job["transport"]), self.meeting, self.device, Path(self.job["shared"]))

    def specs(self) -> list[Any]:
        from kgen.gates.ranks.job import RankedSpec
        from kgen.records import from_json

        return [from_json(RankedSpec, value) for value in self.job["specs"]]


def _bench(job: Mapping[str, Any], out: Any) -> Bench:
    import torch

    from kgen.gates.ranks.store import Meeting

    rank, ranks = int(job["rank"]), int(job["ranks"])
    if job["device"] == "cpu":
        torch.set_num_threads(1)
        device = "cpu"
    else:
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
        torch.zeros(1, device=device)  # the context: what follows may call the driver
    out.at("meeting")
    return Bench(job, rank, ranks, device, Meeting(int(job["port"]), rank, ranks), out)


def main(argv: list[str]) -> int:
    from kgen.gates.ranks.store import PeerLost
    from kgen.gates.runner.out import CandidateFault, Out

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    job: dict[str, Any] = json.loads(Path(argv[0]).read_text())
    if job["parent"] != os.getppid():
        return 1  # it died before it could take this process with it
    out = Out(Path(argv[1]))
    out.at("start")
    module, function = KINDS[job["kind"]].split(":")
    run: Callable[[Bench], dict[str, Any]] = getattr(importlib.import_module(module), function)
    try:
        bench = _bench(job, out)
        result = {"done": True, **run(bench)}
        bench.meeting.barrier()  # nobody's memory goes while a peer may still reach it
    except (CandidateFault, PeerLost) as fault:
        traceback.print_exc()
        result = {"fault": str(fault)}
    except Exception as error:  # noqa: BLE001  process boundary: the judge gets the reason, the log the traceback
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {str(error).strip()[:1500]}"}
    out.finish(result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
