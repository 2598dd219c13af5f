from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.keys import Echo
from support import openai_server as srv

CASE = Case(
    row=27,
    what="400 whose text would be cut in the middle of the key",
    who="kgen propose",
    code="nowhere",
    attack=Echo(lambda key: srv.status(400, "x" * 365 + key)),
    off=turned(
        "kgen.proposers.faults",
        "    words = _words(redact(error))",
        "    words = redact(_words(str(error)))",
        "words are redacted before they are cut",
    ),
    then="found in 0001-failed.json, graph.sqlite, stderr",
)
