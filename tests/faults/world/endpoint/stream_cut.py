from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, GOOD, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="a stream that ends in the middle of a sentence",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.sse(srv.chunk(GOOD), end=False),),
        says=("without a finish_reason",),
        again=True,
        stream=True,
    ),
    off=turned(
        CHAT,
        "    size, finish, refused = 0, None, False",
        '    size, finish, refused = 0, "stop", False',
        "a stream without a finish_reason is no answer",
    ),
    then="refused, 1 request",
)
