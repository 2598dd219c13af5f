import json
from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.endpoint import CHAT, GOOD, begun, drive
from faults.harness.swapped import without
from support import openai_server as srv


@dataclass(frozen=True)
class Huge:
    """Once 60 MB, then a good answer. How the run ended, and how much of the 60 MB was taken."""

    def code(self, desk: Desk, off: Off) -> str:
        run, taken = begun(desk.fresh()), [0]
        body = json.dumps(srv.completion("x" * 60_000_000)).encode()

        def huge(handler: srv.Handler) -> None:
            handler.head(200, "application/json", len(body))
            for at in range(0, len(body), 1 << 20):
                handler.wfile.write(body[at : at + (1 << 20)])
                taken[0] = at >> 20

        with without(off), srv.serving(huge, srv.ok(GOOD)) as server:
            ended, _ = drive(run, server, False, [])
        return f"{ended}, {'cut off' if taken[0] < 30 else 'read whole'}"


CASE = Case(
    row=24,
    what="an answer of 60 MB",
    who="kgen propose",
    code="refused, cut off",
    attack=Huge(),
    off=turned(
        CHAT, "            if len(raw) > MAX_REPLY_BYTES:", "            if False:", "a reply is read up to a ceiling"
    ),
    then="refused, read whole",
    deep=True,
)
