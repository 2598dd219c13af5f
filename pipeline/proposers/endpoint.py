"""Which OpenAI-compatible endpoint to ask, with which key, model and limits; read from the environment, checked early.

OPENAI_API_KEY, OPENAI_BASE_URL and KGEN_MODEL are what most set. Userinfo in the base URL is sent as a Basic header in
place of the key, and is taken out of the URL, so that no library can log it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kgen.proposers.base import SetupError, Usage
from kgen.proposers.redact import Redactor, shown_url, url_secrets

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-5.2"
MAX_TOKENS = 32_000  # a 500-line kernel is about 8,000 tokens; the rest is room for reasoning
_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True)
class Endpoint:
    """One endpoint. Prices in USD per million tokens; None: not known. Its repr shows no secret."""

    api_key: str = field(repr=False)
    base_url: str = field(default=DEFAULT_URL, repr=False)
    model: str = DEFAULT_MODEL
    max_tokens: int = MAX_TOKENS
    temperature: float | None = None
    stream: bool = False  # server-sent events: for proxies that cut connections on which nothing moves
    price_in: float | None = None
    price_out: float | None = None

    def __post_init__(self) -> None:
        if not self.api_key or any(not "!" <= c <= "~" for c in self.api_key):
            raise SetupError("OPENAI_API_KEY is empty or holds characters that cannot be sent: set it again")
        _checked_url(self.base_url)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Endpoint:
        """Raises SetupError (one line that names the variable) for missing or unusable settings."""
        key = env.get("OPENAI_API_KEY", "").strip()
        if not key:
            raise SetupError("no key: set OPENAI_API_KEY (any word if the server needs none), or use --proposer search")
        return cls(
            api_key=key,
            base_url=env.get("OPENAI_BASE_URL", "").strip() or DEFAULT_URL,
            model=env.get("KGEN_MODEL", "").strip() or DEFAULT_MODEL,
            max_tokens=int(_number(env, "KGEN_MAX_TOKENS", 256, 1_000_000) or MAX_TOKENS),
            temperature=_number(env, "KGEN_TEMPERATURE", 0, 2),
            stream=env.get("KGEN_STREAM", "").strip().lower() in _ON,
            price_in=_number(env, "KGEN_PRICE_IN", 0, 1e6),
            price_out=_number(env, "KGEN_PRICE_OUT", 0, 1e6),
        )

    @property
    def shown(self) -> str:
        """The base URL as it may be shown and recorded."""
        return shown_url(self.base_url)

    @property
    def url(self) -> str:
        """The base URL without userinfo, as it is used."""
        parts = urlsplit(self.base_url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()

    @property
    def headers(self) -> dict[str, str]:
        """A Basic header for the URL's userinfo; nothing otherwise, and the library sends the key."""
        userinfo, at, _ = urlsplit(self.base_url).netloc.rpartition("@")
        if not at:
            return {}
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}

    @property
    def redactor(self) -> Redactor:
        return Redactor([self.api_key, *url_secrets(self.base_url)])

    @property
    def tokens_field(self) -> str:
        """OpenAI's own newer models refuse `max_tokens`; other servers may know nothing else."""
        host = urlsplit(self.base_url).hostname or ""
        return "max_completion_tokens" if host == "openai.com" or host.endswith(".openai.com") else "max_tokens"

    def cost_usd(self, usage: Usage) -> float | None:
        if self.price_in is None or self.price_out is None:
            return None
        return (usage.prompt_tokens * self.price_in + usage.completion_tokens * self.price_out) / 1e6


def _checked_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an unclosed bracket
        usable = False
    if not usable or any(c.isspace() or not c.isprintable() for c in url):
        raise SetupError(f"OPENAI_BASE_URL is not an http(s) URL: {shown_url(url)!r}")


def _number(env: Mapping[str, str], name: str, low: float, high: float) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise SetupError(f"{name} must be a number from {low:g} to {high:g}")
    return value
