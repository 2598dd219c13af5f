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
from kgen.proposers.submitted import SubmittedProposer


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


def _tune(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    from kgen.proposers.tune import TuneProposer

    if source is None:
        raise SetupError("tune needs a candidate that declares its tunables: kgen tune FILE --op OP")
    return TuneProposer(source), f"constants of {source}"


def _replay(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    if source is None:
        raise SetupError("replay needs a run folder to read: --replay RUN")
    return ReplayProposer(source), f"answers recorded in {source}"


def _mcp(env: Mapping[str, str], config: Config, source: Path | None) -> tuple[Proposer, str]:
    return SubmittedProposer(), "candidates are those that agents submit through kgen mcp"


MAKERS: Mapping[str, Callable[[Mapping[str, str], Config, Path | None], tuple[Proposer, str]]] = {
    "search": _search,
    "openai": _openai,
    "mailbox": _mailbox,
    "replay": _replay,
    "mcp": _mcp,
    "tune": _tune,
}


def choose(
    name: str = "",
    env: Mapping[str, str] | None = None,
    source: Path | None = None,
    flags: Sequence[str] = (),
    search: str = "",
) -> Choice:
    """The proposer called `name`; without a name, openai where OPENAI_API_KEY is set and search otherwise.

    `source` is the run folder that replay reads, the folder of a mailbox or the file that tune varies; `search` is how
    search and tune choose points (a method of kgen.proposers.studies); `flags` are settings as KEY=VALUE;
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
    if search:
        what += _guided(proposer, search)
    return Choice(proposer, f"proposer: {chosen}{why}: {what}")


def _guided(proposer: Proposer, method: str) -> str:
    """Let a proposer choose points by `method`; in words. Raises SetupError where it cannot."""
    from kgen.proposers.search import SearchProposer
    from kgen.proposers.studies import METHODS, ready
    from kgen.proposers.tune import TuneProposer

    if not isinstance(proposer, SearchProposer | TuneProposer):
        raise SetupError(f"--search goes with the proposers search and tune, not with {proposer.name}")
    if method not in METHODS:
        raise SetupError(f"unknown search {method!r}; known: {', '.join(METHODS)}")
    ready(method)
    proposer.method = method
    return f", points by {method}"
