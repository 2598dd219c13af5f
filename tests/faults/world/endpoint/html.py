from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="200 with the page of a captive portal",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.raw_body(b"<html>Welcome</html>", "text/html"),),
        says=("text/html",),
    ),
    off=turned(
        CHAT,
        '        return Fault(f"the reply is not JSON ({len(raw)} bytes of {kind})")',
        '        return Reply(raw.decode(), "stop")',
        "what is not JSON is no answer",
    ),
    then="nothing, 3 requests, unclear",
)
