from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import FAULTS, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="401",
    who="kgen propose",
    code="exit 3, 1 request",
    attack=Endpoint(
        (lambda: srv.status(401),),
        says=("check OPENAI_API_KEY",),
        again=True,
    ),
    off=turned(
        FAULTS,
        '    401: (True, "the endpoint refuses the key: check OPENAI_API_KEY"),\n',
        "",
        "the line says which setting to look at",
    ),
    then="exit 3, 1 request, unclear",
    deep=True,
)
