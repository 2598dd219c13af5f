from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.keys import REDACT, Echo
from support import openai_server as srv

CASE = Case(
    row=27,
    what="the HTTP library logs the headers of a reply that repeat the key",
    who="kgen propose",
    code="nowhere",
    attack=Echo(lambda key: srv.status(500, retry_after="0", x_key=f"Bearer {key}")),
    off=turned(
        REDACT,
        "        record.msg, record.args = self._redactor.text(record.getMessage()), ()\n",
        "",
        "log lines of the libraries are redacted too",
    ),
    then="found in logs",
    deep=True,
)
