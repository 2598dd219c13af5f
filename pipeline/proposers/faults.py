"""What an endpoint's exceptions mean: ask again, or let a person act. One table.

The openai package lets errors of its HTTP library (httpx in 2.x, httpx2 in 3.x) and of the JSON decoder through
unwrapped; both are faults of the endpoint here. Anything unknown is retryable: the loop's limits bound it.
"""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_MESSAGE = 400  # characters of a server's own words
MAX_RETRY_AFTER_S = 3600.0

# HTTP status -> (fatal, what it means and what to do). Other 4xx are fatal, other 5xx are not.
STATUS: Mapping[int, tuple[bool, str]] = {
    400: (True, "the endpoint refuses the request"),
    401: (True, "the endpoint refuses the key: check OPENAI_API_KEY"),
    402: (True, "the account has no credit"),
    403: (True, "the key may not use this model: check OPENAI_API_KEY and KGEN_MODEL"),
    404: (True, "no such model or path: check KGEN_MODEL and OPENAI_BASE_URL"),
    408: (False, "the endpoint timed out"),
    409: (False, "the endpoint is busy"),
    425: (False, "the endpoint is busy"),
    429: (False, "the endpoint limits the rate of requests"),
}
NO_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached"})  # 429, but waiting does not help


@dataclass(frozen=True)
class Fault:
    """One failed attempt. `fatal`: the same request will fail again. `retry_after` in seconds, as the server asked.

    `status` is that of HTTP, 0 without one. `unsent`: the endpoint never had the request.
    """

    message: str
    fatal: bool = False
    retry_after: float | None = None
    status: int = 0
    unsent: bool = False

    @property
    def lost(self) -> bool:
        """Whether the endpoint may have worked on the request, and may charge for it."""
        return not (self.status or self.fatal or self.unsent)


def fault_of(error: Exception, where: str, model: str, redact: Callable[[object], str]) -> Fault:
    """The fault that an exception of one attempt stands for. `redact` sees every foreign word before it is cut."""
    import openai

    words = _words(redact(error))
    if isinstance(error, openai.APIStatusError):
        return _status_fault(error, words, where, model)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        name = type(cause).__name__
        unsent = name in ("ConnectError", "ConnectTimeout")
        return Fault(f"{where}: connection failed ({name}: {_words(redact(cause))})", unsent=unsent)
    if isinstance(error, openai.APIError):  # e.g. an error event inside a stream
        return Fault(f"{where}: the endpoint reports an error: {words}")
    if isinstance(error, openai.OpenAIError):  # raised before anything is sent
        return Fault(f"{where}: {words}", fatal=True)
    if isinstance(error, ValueError):
        return Fault(f"{where}: the reply is not what the protocol says ({type(error).__name__})")
    return Fault(f"{where}: {type(error).__name__}: {words}")


def _status_fault(error: object, words: str, where: str, model: str) -> Fault:
    status = int(getattr(error, "status_code", 0))
    fatal, meaning = STATUS.get(status, (400 <= status < 500, "the endpoint answers with an error"))
    if getattr(error, "code", None) in NO_QUOTA:
        fatal, meaning = True, "the account's quota is used up"
    headers = getattr(getattr(error, "response", None), "headers", {})
    told = f"{where}: {meaning} (HTTP {status}, model {model}): {words}"
    return Fault(told, fatal, retry_after(headers), status)


def _words(text: str) -> str:
    """A server's or library's words on one line, printable, capped."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "..."


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from Retry-After-Ms or Retry-After (a number or an HTTP date); None when absent or nonsense."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        return min(seconds, MAX_RETRY_AFTER_S) if math.isfinite(seconds) and seconds >= 0 else None
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return min(max(0.0, moment.timestamp() - time.time()), MAX_RETRY_AFTER_S)
    except (ValueError, TypeError, OverflowError):
        return None
