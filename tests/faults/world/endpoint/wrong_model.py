from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import FAULTS, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="404 for the model",
    who="kgen propose",
    code="exit 3, 1 request",
    attack=Endpoint(
        (lambda: srv.status(404),),
        says=("check KGEN_MODEL",),
    ),
    off=turned(
        FAULTS,
        '    404: (True, "no such model or path: check KGEN_MODEL and OPENAI_BASE_URL"),\n',
        "",
        "the line says which setting to look at",
    ),
    then="exit 3, 1 request, unclear",
    deep=True,
)
