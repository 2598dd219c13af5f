from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="200 with null in place of the text",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (srv.null_content,),
    ),
    off=turned(
        CHAT,
        '    if content is None and finish != "stop":',
        "    if content is None:",
        "an answer without a text is no answer",
    ),
    then="nothing, 3 requests",
    deep=True,
)
