from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import FAULTS, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="a connection that is reset",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (srv.reset,),
        says=("connection failed",),
        again=True,
    ),
    off=turned(
        FAULTS,
        "    if isinstance(error, openai.APIConnectionError):",
        "    if False:",
        "the client's exceptions are told apart",
    ),
    then="exit 4, 4 requests, waits 10.5 s, unclear",
)
