from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="one byte every fifty milliseconds, without end",
    who="kgen propose",
    code="exit 4, 1 request",
    attack=Endpoint(
        (srv.drip,),
        says=("no complete answer within",),
        again=True,
        seconds=1.0,
    ),
    off=turned(
        CHAT,
        "asyncio.wait_for(self._request(body, seconds), max(0.001, seconds))",
        "self._request(body, seconds)",
        "a total deadline, beside the one for each read",
    ),
    then="exit 4, 1 request, late",
)
