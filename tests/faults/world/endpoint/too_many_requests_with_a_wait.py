from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import FAULTS, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="429 with Retry-After: 3",
    who="kgen propose",
    code="exit 4, 4 requests, waits 9.0 s",
    attack=Endpoint(
        (lambda: srv.status(429, retry_after="3"),),
        says=("429", "asks to wait 3 s"),
    ),
    off=turned(
        FAULTS,
        "        return min(seconds, MAX_RETRY_AFTER_S) if math.isfinite(seconds) and seconds >= 0 else None",
        "        return None",
        "Retry-After is kept to",
    ),
    then="exit 4, 4 requests, waits 10.5 s, unclear",
    deep=True,
)
