from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import OPENAI, Endpoint
from support import openai_server as srv

CASE = Case(
    row=25,
    what="prose without code",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok("I would use wgmma."),),
        says=("answer.no-code",),
    ),
    off=turned(
        OPENAI,
        "MAX_IN_A_ROW, FormatError, extract\n",
        "FormatError, extract\n\nMAX_IN_A_ROW = 5\n",
        "three unusable answers in a row end the asking",
    ),
    then="nothing, 5 requests",
)
