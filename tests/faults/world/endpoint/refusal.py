from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="a refusal",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.json_body(srv.completion(None, "stop", refusal="I cannot")),),
    ),
    off=turned(
        CHAT,
        "    if content is None and isinstance(refusal, str) and refusal:",
        "    if False:",
        "a refusal is told from a broken reply",
    ),
    then="exit 4, 4 requests, waits 10.5 s",
    deep=True,
)
