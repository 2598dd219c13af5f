from faults.harness.case import Case
from faults.harness.keys import MASKED, Echo
from support import openai_server as srv

CASE = Case(
    row=27,
    what="500 that repeats the password of the base URL",
    who="kgen propose",
    code="nowhere",
    attack=Echo(lambda word: srv.status(500, f"user:{word} failed", retry_after="0"), userinfo=True),
    off=MASKED,
    then="found in 0001-failed.json, graph.sqlite, stderr",
)
