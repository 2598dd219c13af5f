"""Keys and passwords never leave the process: every text is passed through a Redactor before it is kept or shown.

Covered: the key and the userinfo of the base URL, as they are, percent-encoded, as in JSON or repr, and in base64.
Not covered: a key that a server returns in pieces or in another encoding, and words shorter than MIN_SECRET, which
are placeholders for servers without keys ("none", "EMPTY"); replacing those everywhere would destroy honest text.
"""

import base64
import json
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, unquote, urlsplit, urlunsplit

MIN_SECRET = 6
MASK = "[redacted]"
_PARTS = ("connection", "http11", "http2", "proxy", "socks")
WIRE_LOGGERS = (
    *("openai", "openai._base_client", "openai._legacy_response", "openai._response", "httpx", "httpx2"),
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in _PARTS),
)
_USERINFO = re.compile(r"(?<=://)[^\s/@?#'\"]+@")
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
        return _HEADER.sub(rf"\1{MASK}", _USERINFO.sub(f"{MASK}@", out))

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
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _forms(secret: str) -> set[str]:
    raw, plain = secret.encode("utf-8", "surrogatepass"), unquote(secret)
    encoded = {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    written = {
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe="", errors="replace"),
        quote(secret, errors="replace"),
    }
    return {form for form in {secret, plain} | encoded | written if len(form) >= MIN_SECRET}
