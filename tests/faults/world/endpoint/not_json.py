from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="200 with half of a JSON text",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.raw_body(b'{"choices": [{"mess'),),
        says=("not JSON",),
    ),
    off=turned(
        CHAT,
        "    except (ValueError, RecursionError):",
        "    except RecursionError:",
        "what is not JSON is no answer",
    ),
    then="exit 4, 4 requests, waits 10.5 s, unclear",
    deep=True,
)
