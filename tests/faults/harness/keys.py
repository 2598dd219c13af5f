"""A run whose endpoint gives back the key that it was sent; then everything that the run left is searched for it.

Searched are all files (prompts, answers, candidates, reports, the checkpoint and its log), stdout, stderr with the HTTP
libraries at debug level, and exceptions with their causes; for any ten characters of the key or the password, as they
are, escaped, in hexadecimal and in base64, also where lines or quotes lie between. The search shares no code with kgen.
"""

import base64
import io
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from exploits.harness.off import Off, turned
from faults.harness.desk import Desk, Done
from faults.harness.places import MATRIX, the_run
from support import openai_server as srv
from support.loops import OP

REDACT, CHAT = "kgen.proposers.redact", "kgen.proposers.chat"
KEY = "sk-Zq7/pL0+xV3mTr9uWy2bEh5nKd8cGs4"
PASSWORD = "Hj6%vN1rQz8/tYb3"
WINDOW = 10
MASKED = turned(
    CHAT,
    "        self._redact = endpoint.redactor.text",
    "        self._redact = str",
    "every word of an endpoint is redacted",
)
BETWEEN = re.compile(rb"""[\s"'\\>#|]+|\\n|\\r""")


def windows(text: str) -> set[str]:
    return {text[n : n + WINDOW] for n in range(len(text) - WINDOW + 1)}


def forms(secret: str) -> set[bytes]:
    """Pieces by which the secret could be known, in each way of writing it."""
    raw = secret.encode()
    coded = [base64.b64encode(bytes(n) + raw).decode()[4:-4] for n in range(3)]
    coded += [text.replace("+", "-").replace("/", "_") for text in coded]
    escaped = "".join(f"\\u{ord(c):04x}" for c in secret)
    written = [secret, quote(secret, safe=""), quote(secret, safe="").lower(), json.dumps(secret)[1:-1], raw.hex()]
    return {piece.encode() for text in [*coded, *written, escaped] for piece in windows(text)}


FORMS = forms(KEY) | forms(PASSWORD)


def found(data: bytes) -> bool:
    return any(form in text for text in (data, BETWEEN.sub(b"", data)) for form in FORMS)


@dataclass(frozen=True)
class Echo:
    """What the endpoint answers, as a function of the credentials that it got, in whatever writing."""

    behaviour: Callable[[str], srv.Behaviour]
    userinfo: bool = False
    env: dict[str, str] = field(default_factory=dict)

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        with srv.serving(lambda h: self.behaviour(_credentials(h))(h)) as server:
            url = server.url.replace("://", f"://user:{quote(PASSWORD, safe='')}@") if self.userinfo else server.url
            env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "KGEN_DEBUG": "1", **self.env}
            argv = ("propose", "--op", OP.name, "--proposer", "openai", "--candidates", "1", "--minutes", "0.5")
            logs, done = logged(lambda: desk.here(home, *argv, *MATRIX, off=off, env=env))
            sent = server.seen[0].headers["authorization"]
        assert KEY in sent or self.userinfo
        told = [desk.here(home, *a) for a in (("report",), ("runs", "show"), ("report", "--json"))]
        said = {"stderr": done.err, "stdout": done.out, "logs": logs, "report": "".join(d.out + d.err for d in told)}
        leaks = [name for name, text in said.items() if found(text.encode())]
        run = the_run(home).path
        assert (run / "graph.sqlite").exists()
        leaks += [p.name for p in sorted(home.rglob("*")) if p.is_file() and found(p.read_bytes() + p.name.encode())]
        return f"found in {', '.join(sorted(set(leaks)))}" if leaks else "nowhere"


def logged(action: Callable[[], Done]) -> tuple[str, Done]:
    """All lines of all libraries, at debug level."""
    text = io.StringIO()
    handler, root = logging.StreamHandler(text), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        done = action()
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    return text.getvalue(), done


def _credentials(handler: srv.Handler) -> str:
    """The key, or the password."""
    word = handler.authorization().split()[-1]
    return word if word == KEY else base64.b64decode(word).decode().partition(":")[2]
