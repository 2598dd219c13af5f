from urllib.parse import quote

from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.keys import REDACT, Echo
from support import openai_server as srv

CASE = Case(
    row=27,
    what="a good answer with the key in percent escapes, and in hexadecimal digits",
    who="kgen propose",
    code="nowhere",
    attack=Echo(lambda key: srv.ok(srv.answer(f"import os\n# {quote(key, safe='')} {key.encode().hex()}\n"))),
    off=turned(
        REDACT,
        "        raw.hex(),\n",
        "",
        "a secret is known in hexadecimal digits and in every kind of escapes",
    ),
    then="found in 0001.md, kernel.py",
    deep=True,
)
