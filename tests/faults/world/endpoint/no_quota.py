from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import FAULTS, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="429 because the account is empty",
    who="kgen propose",
    code="exit 3, 1 request",
    attack=Endpoint(
        (lambda: srv.status(429, error_code="insufficient_quota"),),
        says=("quota is used up",),
    ),
    off=turned(
        FAULTS,
        'frozenset({"insufficient_quota", "billing_hard_limit_reached"})',
        'frozenset({"other"})',
        "faults that waiting does not cure are told from those that it does",
    ),
    then="exit 4, 4 requests, waits 10.5 s, unclear",
    deep=True,
)
