"""Which proposer a run uses, by name or by default, and one line that says which and why. A table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgen.config import Config, load
from kgen.proposers.base import Proposer, SetupError
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.mailbox import MailboxProposer
from kgen.proposers.models import Models
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.replay import ReplayProposer


@dataclass(frozen=True)
class Choice:
    """The proposer and a line for the user: which one it is and why."""

    proposer: Proposer
    line: str

    @property
    def endpoint(self) -> Endpoint | None:
        """The model that designs, where one is asked."""
        return self.proposer.endpoint if isinstance(self.proposer, OpenAIProposer) else None


def _openai(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    models = Models.of(config, env)
    return OpenAIProposer(models=models), models.line + config.said("endpoint.base_url")


def _search(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    from kgen.proposers.search import SearchProposer  # loads the kernel families: only when it is chosen

    return SearchProposer(), "built-in kernel families, offline, deterministic by seed"


def _mailbox(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    where = str(source or "the run folder")
    return MailboxProposer(folder=source), f"prompts go to {where}, answers come from files there"


def _replay(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    if source is None:
        raise SetupError("replay needs a run folder to read: --replay RUN")
    return ReplayProposer(source), f"answers recorded in {source}"


MAKERS: Mapping[str, Callable[[Mapping[str, str], Config, Path | None], tuple[Proposer, str]]] = {
    "search": _search,
    "openai": _openai,
    "mailbox": _mailbox,
    "replay": _replay,
}


def choose(
    name: str = "",
    env: Mapping[str, str] | None = None,
    source: Path | None = None,
    flags: Sequence[str] = (),
) -> Choice:
    """The proposer called `name`; without a name, openai where OPENAI_API_KEY is set and search otherwise.

    `source` is the run folder that replay reads, or the folder of a mailbox; `flags` are settings as KEY=VALUE;
    kgen.toml is read unless `env` is given. Raises SetupError (one line) for an unknown name or missing settings,
    ConfigError for unusable ones.
    """
    settings = os.environ if env is None else env
    config = load(settings, Path.cwd() if env is None else None, flags)
    key = str(config.endpoint("key_env"))
    keyed = bool(settings.get(key, "").strip())
    chosen = name or ("openai" if keyed else "search")
    if chosen not in MAKERS:
        raise SetupError(f"unknown proposer {chosen!r}; known: {', '.join(MAKERS)}")
    why = "" if name else f" ({key} is {'set' if keyed else 'not set'})"
    proposer, what = MAKERS[chosen](settings, config, source)
    return Choice(proposer, f"proposer: {chosen}{why}: {what}")
