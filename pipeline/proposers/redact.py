"""Keys and passwords never leave the process: every text is passed through a Redactor before it is kept or shown.

Covered: the key and the userinfo of the base URL, as they are, percent-encoded, as in JSON or repr, as hexadecimal
digits and in base64, alone or within something longer; and each of these broken over lines.
Not covered: a key that a server returns in pieces or in another encoding, and words shorter than MIN_SECRET, which
are placeholders for servers without keys ("none", "EMPTY"); replacing those everywhere would destroy honest text.
"""

import base64
import json
import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from urllib.parse import quote, unquote, urlsplit, urlunsplit

MIN_SECRET = 6
MIN_BROKEN = 12  # shorter words may come together by chance where lines are joined
MASK = "[redacted]"
_PARTS = ("connection", "http11", "http2", "proxy", "socks")
WIRE_LOGGERS = (
    *("openai", "openai._base_client", "openai._legacy_response", "openai._response", "httpx", "httpx2"),
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in _PARTS),
)
_USERINFO = re.compile(r"(?<=://)[^\s/@?#'\"]+@")
# The end of a line, also as JSON has it; a run of spaces is looked at from its start only
_BREAK = re.compile(r"""(?:["'\\]{1,2}|(?<![ \t]))[ \t]*(?:\r?\n|\\r|\\n)(?:[\s"'#>|]|\\r|\\n)*""")
_HEADER = re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s'\"]+")


class Redactor:
    """Replaces known secrets, and what looks like credentials in URLs and headers, by a mask."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if len(secret) >= MIN_SECRET for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)  # the longest first: one may hold another

    def text(self, value: object) -> str:
        out = str(value)
        for form in self._forms:
            out = out.replace(form, MASK)
        out = self._over_lines(out)
        return _HEADER.sub(rf"\1{MASK}", _USERINFO.sub(f"{MASK}@", out))

    def _over_lines(self, text: str) -> str:
        """`text` without the secrets that run over the end of a line: looked for where all lines are one."""
        breaks = list(_BREAK.finditer(text))
        starts = [0, *(b.end() for b in breaks)]  # of the pieces between breaks, in `text`
        ends = [*(b.start() for b in breaks), len(text)]
        pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        joined, at = "".join(pieces), [0, *accumulate(len(piece) for piece in pieces)]
        forms = [form for form in self._forms if len(form) >= MIN_BROKEN and form in joined]
        found = sorted(m.span() for form in forms for m in re.finditer(re.escape(form), joined))
        spans: list[tuple[int, int]] = []
        for first, end in found:  # one form may lie within another, or overlap it
            overlaps = bool(spans) and first < spans[-1][1]
            spans[-1:] = [(spans[-1][0], max(spans[-1][1], end))] if overlaps else [*spans[-1:], (first, end)]
        for first, end in reversed(spans):
            a, b = (bisect_right(at, n, hi=len(pieces)) - 1 for n in (first, end - 1))
            text = text[: starts[a] + first - at[a]] + MASK + text[starts[b] + end - at[b] :]
        return text

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms)"


class _Filter(logging.Filter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redactor.text(record.getMessage()), ()
        return True


@contextmanager
def redacted_logs(redactor: Redactor) -> Iterator[None]:
    """While this is open, the HTTP libraries' own log lines (at debug level: whole headers) are redacted."""
    loggers, redacting = [logging.getLogger(name) for name in WIRE_LOGGERS], _Filter(redactor)
    for logger in loggers:
        logger.addFilter(redacting)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(redacting)


def url_secrets(url: str) -> list[str]:
    """User and password of a URL, and both together as they go into a Basic header."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return [url]
    if "@" not in parts.netloc:
        return []
    userinfo = parts.netloc.rpartition("@")[0]
    user, _, password = userinfo.partition(":")
    return [userinfo, f"{unquote(user)}:{unquote(password)}", password or user]


def shown_url(url: str) -> str:
    """A URL that may be shown and recorded: without userinfo, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if not parts.netloc and "@" in parts.path:  # no URL of a server, and what is before the @ may be a password
        return MASK
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _forms(secret: str) -> set[str]:
    raw, plain = secret.encode("utf-8", "surrogatepass"), unquote(secret)
    codes = [f"\\u{ord(c):04x}" for c in secret]
    written = {
        json.dumps(secret)[1:-1],
        json.dumps(secret)[1:-1].replace("/", "\\/"),
        repr(secret)[1:-1],
        *(quote(secret, safe=safe, errors="replace") for safe in ("", "/")),
        *(_lower_escapes(quote(secret, safe=safe, errors="replace")) for safe in ("", "/")),
        "".join(codes),
        "".join(codes).upper().replace("\\U", "\\u"),
        raw.hex(),
        raw.hex().upper(),
    }
    return {form for form in {secret, plain} | _base64(raw) | written if len(form) >= MIN_SECRET}


def _lower_escapes(text: str) -> str:
    return re.sub("%..", lambda m: m[0].lower(), text)


def _base64(raw: bytes) -> set[str]:
    """What base64 makes of these bytes whatever stands before and after them: three ways, by where they begin."""
    found = {base64.b64encode(raw).decode().rstrip("=")}
    for before, lost in enumerate((0, 2, 3)):  # the first characters depend on what stands before
        text = base64.b64encode(bytes(before) + raw).decode()
        whole = (before + len(raw)) * 8 // 6  # the last one depends on what follows
        found.add(text[lost:whole])
    return {word for text in found for word in (text, text.replace("+", "-").replace("/", "_"))}
