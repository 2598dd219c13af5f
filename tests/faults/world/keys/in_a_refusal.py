from faults.harness.case import Case
from faults.harness.keys import MASKED, Echo
from support import openai_server as srv

CASE = Case(
    row=27,
    what="401 that repeats the key",
    who="kgen propose",
    code="nowhere",
    attack=Echo(lambda key: srv.status(401, f"Incorrect API key provided: {key}")),
    off=MASKED,
    then="found in 0001-failed.json, graph.sqlite, stderr",
)
