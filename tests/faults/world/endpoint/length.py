from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import GOOD, OPENAI, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="an answer that was cut at the token limit",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok(GOOD, finish="length"),),
        says=("answer.truncated",),
    ),
    off=turned(
        OPENAI,
        '    if reply.finish != "stop":',
        '    if reply.finish == "content_filter":',
        'half a kernel is not compiled: only "stop" ends an answer',
    ),
    then="refused, 1 request",
)
