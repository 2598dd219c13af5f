"""One rank's side of the loss of a rank: calls until the host kills one of the others, and what is seen of that.

A rank that is told, or whose kernel's own bound ends the wait, says so; one that hangs in a kernel, the host ends.
"""

import time
from typing import Any

import torch

from kgen.gates.ranks import check
from kgen.gates.ranks.store import LOST, PeerLost
from kgen.gates.ranks.worker import Bench

STEADY = "steady"  # word to the host: this rank's calls return
STEADY_CALLS = 50


@torch.no_grad()
def run(bench: Bench) -> dict[str, Any]:
    transport, (spec, *_) = bench.transport(), bench.specs()
    ranked = check.opened(bench, spec, transport)
    ranked.buffers.load(ranked.inputs(spec.op.families[0].name, int(bench.job["seed"])))
    call, number = ranked.subject.bind(ranked.buffers), 0
    until = time.monotonic() + float(bench.job["seconds"])
    with bench.out.candidate("calls until a rank is lost", bench.device):
        while time.monotonic() < until:
            call()
            if bench.device != "cpu":
                torch.cuda.synchronize()
            number += 1
            if number == STEADY_CALLS:
                bench.out.at(STEADY, candidate=True)
            if number > STEADY_CALLS and bench.meeting.store.check([LOST]):
                held = [b.tensor.flatten()[:16].tolist() for b in ranked.subject.work]
                bench.out.record({"returned": number, "workspaces": held})
                raise PeerLost(bench.meeting.store.get(LOST).decode())
    raise RuntimeError(f"no rank was lost within {bench.job['seconds']} s")
