from faults.harness.case import Case
from faults.harness.keys import MASKED, Echo
from support import openai_server as srv

CASE = Case(
    row=27,
    what="a good answer with the key in its text and its code",
    who="kgen propose",
    code="nowhere",
    attack=Echo(lambda key: srv.ok(srv.answer(f"import os\n# {key}\n", intro=key))),
    off=MASKED,
    then="found in 0001.md, kernel.py",
)
