"""Every key that kgen.toml may hold, what its values may be, and the variable that stands above it. One table.

    [endpoint]          base_url, key_env, stream, tools
    [models.ROLE]       model, api, temperature, reasoning_effort, max_tokens
    [prices."MODEL"]    prompt, cached, completion: USD per million tokens

ROLE is design, repair, optimise, or default for what stands for all of them. Keys of endpoints have no place here:
`key_env` names the variable that holds one.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DESIGN, REPAIR, OPTIMISE = "design", "repair", "optimise"
ROLES = (DESIGN, REPAIR, OPTIMISE)
DEFAULT = "default"  # the role whose values stand for all that the others do not set

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-5.2"
MAX_TOKENS = 32_000  # a 500-line kernel is about 8,000 tokens; the rest is room for reasoning
APIS = ("chat", "responses")
ON, OFF = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
KEY_ENV = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")


class ConfigError(ValueError):
    """A setting that cannot be used: one line that names it, and never its value, which may be a misplaced secret."""


@dataclass(frozen=True)
class Key:
    """`kind`: text, url, variable, flag, count, number, or api. `env`: the variable that is the same setting."""

    kind: str
    env: str = ""
    default: Any = None
    low: float = 0
    high: float = math.inf
    doc: str = ""


ENDPOINT: Mapping[str, Key] = {
    "base_url": Key("url", "OPENAI_BASE_URL", DEFAULT_URL, doc="of any OpenAI-compatible server"),
    "key_env": Key("variable", "", "OPENAI_API_KEY", doc="the variable that holds the key"),
    "stream": Key("flag", "KGEN_STREAM", False, doc="server-sent events"),
    "tools": Key("flag", "KGEN_TOOLS", True, doc="offer read-only tools where the server has them"),
}
MODEL: Mapping[str, Key] = {
    "model": Key("text", "KGEN_MODEL", DEFAULT_MODEL, doc="the model's name"),
    "api": Key("api", "KGEN_API", "chat", doc="chat (chat.completions) or responses"),
    "temperature": Key("number", "KGEN_TEMPERATURE", None, 0, 2, doc="unset: the server's own"),
    "reasoning_effort": Key(
        "text", "KGEN_REASONING_EFFORT", None, doc="e.g. low, medium, high; unset: the server's own"
    ),
    "max_tokens": Key("count", "KGEN_MAX_TOKENS", MAX_TOKENS, 256, 1_000_000, doc="of one answer"),
}
PRICES: Mapping[str, Key] = {
    "prompt": Key("number", "KGEN_PRICE_IN", None, 0, 1e6, doc="USD per million prompt tokens"),
    "cached": Key("number", "KGEN_PRICE_CACHED", None, 0, 1e6, doc="of those read from a cache; unset: as the others"),
    "completion": Key("number", "KGEN_PRICE_OUT", None, 0, 1e6, doc="USD per million tokens of answers"),
}


def find(dotted: str, where: str) -> Key:
    """The key called `endpoint.NAME`, `models.ROLE.NAME` or `prices.MODEL.NAME`. Raises ConfigError."""
    table, _, rest = dotted.partition(".")
    group, _, name = rest.rpartition(".")
    keys = {"endpoint": ENDPOINT, "models": MODEL, "prices": PRICES}.get(table)
    if keys is None:
        raise ConfigError(f"{where}: unknown table [{_shown(table)}]; known: endpoint, models.ROLE, prices.MODEL")
    if (table == "endpoint") == bool(group):
        raise ConfigError(f"{where}: {_shown(dotted)} is not a key; {FORMS[table]}")
    if table == "models" and group not in (DEFAULT, *ROLES):
        raise ConfigError(f"{where}: unknown role {_shown(group)}; known: {', '.join((DEFAULT, *ROLES))}")
    if "key" in name.lower() and name not in keys:
        raise ConfigError(f"{where}: keys do not live in files: set a variable, and name it with endpoint.key_env")
    if name not in keys:
        raise ConfigError(f"{where}: [{_shown(dotted[: -len(name) - 1])}] has no key {_shown(name)}; {FORMS[table]}")
    return keys[name]


FORMS: Mapping[str, str] = {
    "endpoint": f"known: {', '.join(ENDPOINT)}",
    "models": f"known for a role: {', '.join(MODEL)}",
    "prices": f"known for a model: {', '.join(PRICES)}",
}


def from_text(key: Key, text: str, where: str) -> Any:
    """The value that a variable or a flag stands for. Raises ConfigError."""
    text = text.strip()
    if key.kind == "flag":
        word = text.lower()
        if word not in ON | OFF:
            raise ConfigError(f"{where} must be one of 1, true, yes, on, 0, false, no, off")
        return word in ON
    if key.kind in ("number", "count"):
        try:
            return checked(key, float(text) if key.kind == "number" else int(float(text)), where)
        except (ValueError, OverflowError):
            return checked(key, math.nan, where)
    return checked(key, text, where)


def checked(key: Key, value: Any, where: str) -> Any:
    """`value` if the key may have it. Raises ConfigError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key.kind in ("number", "count"):
        whole = key.kind == "number" or isinstance(value, int)
        if not number or not whole or not key.low <= value <= key.high:
            raise ConfigError(f"{where} must be a number from {key.low:g} to {key.high:g}")
        return float(value) if key.kind == "number" else value
    if key.kind == "flag":
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false")
        return value
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConfigError(f"{where} must be a text that is not empty")
    if key.kind == "api" and value not in APIS:
        raise ConfigError(f"{where} must be one of {', '.join(APIS)}")
    if key.kind == "variable" and not KEY_ENV.fullmatch(value):
        raise ConfigError(f"{where} must be the name of a variable that ends in _API_KEY: the key itself is kept there")
    return value


def without_secrets(dotted: str, value: Any, where: str) -> Any:
    """`value` as a file may hold it. Raises ConfigError for a URL with a user, a password or a query."""
    if dotted == "endpoint.base_url":
        try:
            parts = urlsplit(value)
            hidden = "@" in parts.netloc or bool(parts.query) or bool(parts.fragment)
        except ValueError:
            hidden = True
        if hidden:
            raise ConfigError(
                f"{where} must be a plain URL: passwords do not live in files, set OPENAI_BASE_URL for one"
            )
    return value


def _shown(name: str) -> str:
    """A foreign name, for a message."""
    return repr(name[:40])
