from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="no byte at all",
    who="kgen propose",
    code="exit 4, 1 request",
    attack=Endpoint(
        (srv.silent,),
        says=("no complete answer within",),
        seconds=1.0,
    ),
    off=turned(
        CHAT,
        '            box.append(Fault(f"{shown}: no complete answer within {max(0.0, seconds):.1f} s"))',
        "            box.append(Fault(shown))",
        "the line says what was waited for, and how long",
    ),
    then="exit 4, 1 request, unclear",
    deep=True,
)
