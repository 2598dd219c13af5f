from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import ANSWERS, Endpoint
from support import openai_server as srv
from support.loops import FORBIDDEN

CASE = Case(
    row=25,
    what="text that no file can hold",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok(srv.answer(FORBIDDEN + "# \ud800\n")),),
        says=("answer.encoding",),
    ),
    off=turned(
        ANSWERS,
        'content.encode("utf-8") if',
        'content.encode("utf-8", "replace") if',
        "the text is plain UTF-8",
    ),
    then="refused, 1 request",
    deep=True,
)
