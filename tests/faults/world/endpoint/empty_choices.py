from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="200 with no choices",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.json_body({"choices": []}),),
        says=("no choices",),
    ),
    off=turned(
        CHAT,
        "    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):",
        "    if not isinstance(choices, list):",
        "every type of a reply is checked",
    ),
    then="exit 4, 4 requests, waits 10.5 s, unclear",
    deep=True,
)
