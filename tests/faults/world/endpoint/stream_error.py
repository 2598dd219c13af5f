from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import FAULTS, GOOD, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="an error event in a stream",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.sse(srv.chunk(GOOD), {"error": {"message": "overloaded"}}),),
        says=("reports an error: overloaded",),
        stream=True,
    ),
    off=turned(
        FAULTS,
        "    if isinstance(error, openai.APIError):",
        "    if False:",
        "the endpoint's own words are passed on",
    ),
    then="exit 3, 1 request, unclear",
    deep=True,
)
