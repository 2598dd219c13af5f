from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.keys import REDACT, Echo
from support import openai_server as srv


def answer(key: str) -> srv.Behaviour:
    intro = f"{key[:9]}\n{key[9:20]}\n{key[20:]}"
    return srv.ok(srv.answer(f"import os\n# {key[:12]}\n#  {key[12:]}\n", intro))


CASE = Case(
    row=27,
    what="a good answer with the key broken over lines",
    who="kgen propose",
    code="nowhere",
    attack=Echo(answer),
    off=turned(
        REDACT,
        "        out = self._over_lines(out)\n",
        "",
        "a secret is known where the end of a line lies within it",
    ),
    then="found in 0001.md, kernel.py",
)
