"""The settings of one command: layers of values, each with its origin.

    config = load(os.environ, Path.cwd(), flags=["models.repair.model=small"])
    config.model("repair")      ModelSettings
    config.rows()               (key, value, origin) of everything, for `kgen config --show-origin`

The order: flags, environment, kgen.toml of the working folder (else of the checkout that it lies in), kgen.toml of the
user's config folder, defaults. A variable counts for every role. Not covered: paths, which have options of their own.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgen.config.keys import (
    DEFAULT,
    ENDPOINT,
    MODEL,
    PRICES,
    ROLES,
    ConfigError,
    checked,
    find,
    from_text,
    without_secrets,
)
from kgen.store.paths import checkout

NAME = "kgen"  # of the folder in the user's config folder, and of the file
FILE = f"{NAME}.toml"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Layer:
    """Values by dotted key; `origins`: where each comes from, as shown."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


@dataclass(frozen=True)
class ModelSettings:
    """What one role asks, and how. Prices in USD per million tokens; None: not known, or the server's own choice."""

    role: str
    model: str
    api: str
    temperature: float | None
    reasoning_effort: str | None
    max_tokens: int
    price_in: float | None
    price_cached: float | None
    price_out: float | None


@dataclass(frozen=True)
class Config:
    """The layers, the strongest first."""

    layers: tuple[Layer, ...] = ()
    files: tuple[Path, ...] = field(default=())

    def endpoint(self, name: str) -> Any:
        return self._look(ENDPOINT[name].default, f"endpoint.{name}", f"*{ENDPOINT[name].env}")[0]

    def said(self, dotted: str) -> str:
        """Where an endpoint's setting comes from, in brackets, where that is a file: a user should see it."""
        origin = next((la.origins[dotted] for la in self.layers if dotted in la.values), "")
        overruled = any(f"*{ENDPOINT[dotted.partition('.')[2]].env}" in la.values for la in self.layers)
        return f" (from {origin})" if origin and origin != "flag" and not overruled else ""

    def model(self, role: str) -> ModelSettings:
        """What `role` uses; an unknown role gets what stands for all."""
        found = {name: self._role(role, name)[0] for name in MODEL}
        prompt, cached, completion = (self._price(found["model"], name)[0] for name in PRICES)
        return ModelSettings(role, price_in=prompt, price_cached=cached, price_out=completion, **found)

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Everything that is in force, with its origin."""
        for name, key in ENDPOINT.items():
            yield f"endpoint.{name}", *self._look(key.default, f"endpoint.{name}", f"*{key.env}")
        for role in ROLES:
            for name in MODEL:
                yield f"models.{role}.{name}", *self._role(role, name)
        models = [self._role(role, "model")[0] for role in ROLES]
        named = [
            k.split(".", 1)[1].rpartition(".")[0] for la in self.layers for k in la.values if k.startswith("prices.")
        ]
        for model in dict.fromkeys([*models, *named]):
            for name in PRICES:
                yield f"prices.{model}.{name}", *self._price(model, name)

    def _role(self, role: str, name: str) -> tuple[Any, str]:
        return self._look(
            MODEL[name].default, f"models.{role}.{name}", f"models.{DEFAULT}.{name}", f"*{MODEL[name].env}"
        )

    def _price(self, model: str, name: str) -> tuple[Any, str]:
        return self._look(None, f"prices.{model}.{name}", f"*{PRICES[name].env}")

    def _look(self, default: Any, *keys: str) -> tuple[Any, str]:
        """The first of `keys` in the strongest layer that has one of them, and its origin."""
        found = ((la.values[k], la.origins[k]) for la in self.layers for k in keys if k in la.values)
        return next(found, (default, "default"))


def load(env: Mapping[str, str], folder: Path | None = None, flags: Sequence[str] = ()) -> Config:
    """`folder`: where the search for files begins; None: no files. Raises ConfigError (one line)."""
    files = [p for p in _places(env, folder) if p.is_file()] if folder else []
    return Config((_flags(flags), _environment(env), *(_file(p) for p in files)), tuple(files))


def _flags(flags: Sequence[str]) -> Layer:
    values = {}
    for text in flags:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("--config takes KEY=VALUE, e.g. models.repair.model=NAME; kgen config lists the keys")
        values[name] = from_text(find(name, "--config"), value, f"--config {name}")
    return Layer(values, dict.fromkeys(values, "flag"))


def _environment(env: Mapping[str, str]) -> Layer:
    """By `*VARIABLE`: a variable is no key of one role but of all. An empty one is none."""
    keys = [key for table in (ENDPOINT, MODEL, PRICES) for key in table.values() if key.env]
    values = {f"*{k.env}": from_text(k, env[k.env], k.env) for k in keys if env.get(k.env, "").strip()}
    return Layer(values, {name: f"environment: {name[1:]}" for name in values})


def _file(path: Path) -> Layer:
    where = str(path)
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{where}: larger than {MAX_BYTES} bytes")
        tables = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())[:200]}") from None
    values = {}
    for dotted, value in _flat(tables, where):
        key = find(dotted, where)
        values[dotted] = without_secrets(dotted, checked(key, value, f"{where}: {dotted}"), f"{where}: {dotted}")
    return Layer(values, dict.fromkeys(values, where))


def _flat(tables: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys; [models.x] and [prices.x] are one level deeper than [endpoint]."""
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{where}: {name[:40]!r} stands outside the tables [endpoint], [models.ROLE], [prices.MODEL]"
            )
        for key, value in table.items():
            if isinstance(value, dict) and name != "endpoint":
                yield from ((f"{name}.{key}.{inner}", v) for inner, v in value.items())
            else:
                yield f"{name}.{key}", value


def _places(env: Mapping[str, str], folder: Path) -> list[Path]:
    """Where a file may lie, the strongest first."""
    source = checkout(folder)
    here = next((f / FILE for f in (folder, source) if f and (f / FILE).is_file()), folder / FILE)
    home = env.get("HOME", "")
    base = env.get("XDG_CONFIG_HOME", "") or (f"{home}/.config" if home else "")
    return [here, *([Path(base) / NAME / FILE] if base else [])]
