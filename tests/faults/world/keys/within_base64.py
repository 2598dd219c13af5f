import base64

from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.keys import REDACT, Echo
from support import openai_server as srv


def answer(key: str) -> srv.Behaviour:
    header = base64.b64encode(f"Bearer {key}".encode()).decode()
    return srv.ok(srv.answer(f"import os\n# {header}\n"))


CASE = Case(
    row=27,
    what="a good answer with the whole header in base64",
    who="kgen propose",
    code="nowhere",
    attack=Echo(answer),
    off=turned(
        REDACT,
        "enumerate((0, 2, 3)):",
        "enumerate((0,)):",
        "a secret is known in base64, whatever stands before it",
    ),
    then="found in 0001.md, kernel.py",
    deep=True,
)
