from faults.harness.case import Case
from faults.harness.signals import ASK, MARKED, Interrupted
from support import openai_server as srv

CASE = Case(
    row=28,
    what="SIGINT in the pause that Retry-After asks for",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(lambda run, server: bool(server.seen), ASK, lambda: srv.status(429, retry_after="30")),
    off=MARKED,
    then="exit 130, not marked",
    deep=True,
)
