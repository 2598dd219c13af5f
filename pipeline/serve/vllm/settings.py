"""What `additional_config["kgen"]` may say: {"set": PATH or "builtin", "ops": [...], "fallback": ..., "record": PATH,
"routing": PATH}.

All keys are optional. `set`: default as for every serving process (`kgen.store.paths.serving_sets`). `ops`: default
every op that has a seat and that the set holds. `fallback`: `op` (an op that is refused runs stock, the others go on)
or `refuse` (start-up fails with all reasons). `record`: the JSON file of what ran; default a user data folder.
`routing`: a file for the expert ids of tokens outside of graphs (`routing`); default none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

KEY = "kgen"
FALLBACKS = ("op", "refuse")
KEYS = ("set", "ops", "fallback", "record", "routing")


class SettingsError(ValueError):
    """One line that says what is wrong with the settings and what may stand there."""


@dataclass(frozen=True)
class Settings:
    """`ops` None: whatever the set holds. Empty `set` and `record`: the defaults."""

    set: str = ""
    ops: tuple[str, ...] | None = None
    fallback: str = "op"
    record: str = ""
    routing: str = ""


def parse(additional: object, seats: tuple[str, ...]) -> Settings | None:
    """The settings in vLLM's additional_config; None without them. `seats`: ops that have one. Raises SettingsError."""
    if not isinstance(additional, Mapping) or KEY not in additional:
        return None
    given = additional[KEY]
    if not isinstance(given, Mapping):
        raise SettingsError(f'additional_config["{KEY}"] must be an object with {_listed(KEYS)}, is {given!r}')
    for key in given:
        if key not in KEYS:
            raise SettingsError(f'additional_config["{KEY}"] has no key {key!r}; known: {_listed(KEYS)}')
    fallback = given.get("fallback", FALLBACKS[0])
    if fallback not in FALLBACKS:
        raise SettingsError(f'additional_config["{KEY}"]["fallback"] must be op or refuse, is {fallback!r}')
    record, routing = _text(given, "record"), _text(given, "routing")
    return Settings(_text(given, "set"), _ops(given.get("ops"), seats), fallback, record, routing)


def _text(given: Mapping[str, object], key: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str) or (key in given and not value.strip()):
        raise SettingsError(f'additional_config["{KEY}"]["{key}"] must be a path, is {value!r}')
    return value


def _ops(given: object, seats: tuple[str, ...]) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not given or len(set(map(str, given))) != len(given):
        raise SettingsError(f'additional_config["{KEY}"]["ops"] must list ops, each once, is {given!r}')
    for op in given:
        if op not in seats:
            raise SettingsError(
                f'additional_config["{KEY}"]["ops"]: {op!r} has no seat in vLLM; seats: {_listed(seats)}'
            )
    return tuple(str(op) for op in given)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
