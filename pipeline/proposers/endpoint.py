"""Which OpenAI-compatible endpoint to ask, with which key, model and limits; read from the settings, checked early.

OPENAI_API_KEY, OPENAI_BASE_URL and KGEN_MODEL are what most set. Userinfo in the base URL is sent as a Basic header in
place of the key, and is taken out of the URL, so that no library can log it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kgen.config import Config, ConfigError, load
from kgen.config.keys import DEFAULT_MODEL, DEFAULT_URL, DESIGN, MAX_TOKENS
from kgen.proposers.base import SetupError, Usage
from kgen.proposers.redact import Redactor, shown_url, url_secrets


@dataclass(frozen=True)
class Endpoint:
    """One endpoint. Prices in USD per million tokens; None: not known. Its repr shows no secret.

    `price_cached` is that of prompt tokens which the server read from a cache; None: as any prompt token. `key_env` is
    the variable that the key came from, for messages.
    """

    api_key: str = field(repr=False)
    base_url: str = field(default=DEFAULT_URL, repr=False)
    model: str = DEFAULT_MODEL
    max_tokens: int = MAX_TOKENS
    temperature: float | None = None
    stream: bool = False  # server-sent events: for proxies that cut connections on which nothing moves
    price_in: float | None = None
    price_out: float | None = None
    price_cached: float | None = None
    api: str = "chat"  # or "responses"
    reasoning_effort: str | None = None
    tools: bool = True  # offered, where a question has some
    key_env: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        if not self.api_key or any(not "!" <= c <= "~" for c in self.api_key):
            raise SetupError(f"{self.key_env} is empty or holds characters that cannot be sent: set it again")
        _checked_url(self.base_url)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Endpoint:
        """Raises SetupError (one line that names the variable) for missing or unusable settings."""
        try:
            return cls.of(load(env), env)
        except ConfigError as error:
            raise SetupError(str(error)) from None

    @classmethod
    def of(cls, config: Config, env: Mapping[str, str], role: str = DESIGN) -> Endpoint:
        """What `role` asks. Raises SetupError without a usable key or URL."""
        name, model = str(config.endpoint("key_env")), config.model(role)
        key = env.get(name, "").strip()
        if not key:
            raise SetupError(f"no key: set {name} (any word if the server needs none), or use --proposer search")
        return cls(
            api_key=key,
            base_url=config.endpoint("base_url"),
            model=model.model,
            max_tokens=model.max_tokens,
            temperature=model.temperature,
            stream=config.endpoint("stream"),
            price_in=model.price_in,
            price_out=model.price_out,
            price_cached=model.price_cached,
            api=model.api,
            reasoning_effort=model.reasoning_effort,
            tools=config.endpoint("tools"),
            key_env=name,
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
        """Of these tokens; None where a price is not known. Tokens of reasoning are among those of the answer."""
        if self.price_in is None or self.price_out is None:
            return None
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        price_cached = self.price_in if self.price_cached is None else self.price_cached
        prompt = (usage.prompt_tokens - cached) * self.price_in + cached * price_cached
        return (prompt + usage.completion_tokens * self.price_out) / 1e6


def _checked_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an unclosed bracket
        usable = False
    if not usable or any(c.isspace() or not c.isprintable() for c in url):
        raise SetupError(f"OPENAI_BASE_URL is not an http(s) URL: {shown_url(url)!r}")
