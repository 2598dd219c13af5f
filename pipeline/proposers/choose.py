"""Which proposer a run uses, by name or by default, and one line that says which and why. A table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kgen.proposers.base import Proposer, SetupError
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.mailbox import MailboxProposer
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.replay import ReplayProposer


@dataclass(frozen=True)
class Choice:
    """The proposer and a line for the user: which one it is and why."""

    proposer: Proposer
    line: str


def _openai(env: Mapping[str, str], source: Path | None) -> tuple[Proposer, str]:
    endpoint = Endpoint.from_env(env)
    return OpenAIProposer(endpoint), f"model {endpoint.model} at {endpoint.shown}"


def _search(env: Mapping[str, str], source: Path | None) -> tuple[Proposer, str]:
    from kgen.proposers.search import SearchProposer  # loads the kernel families: only when it is chosen

    return SearchProposer(), "built-in kernel families, offline, deterministic by seed"


def _mailbox(env: Mapping[str, str], source: Path | None) -> tuple[Proposer, str]:
    return MailboxProposer(), "prompts go to the run folder, answers come from files there"


def _replay(env: Mapping[str, str], source: Path | None) -> tuple[Proposer, str]:
    if source is None:
        raise SetupError("replay needs a run folder to read: --replay RUN")
    return ReplayProposer(source), f"answers recorded in {source}"


MAKERS: Mapping[str, Callable[[Mapping[str, str], Path | None], tuple[Proposer, str]]] = {
    "search": _search,
    "openai": _openai,
    "mailbox": _mailbox,
    "replay": _replay,
}


def choose(name: str = "", env: Mapping[str, str] | None = None, source: Path | None = None) -> Choice:
    """The proposer called `name`; without a name, openai where OPENAI_API_KEY is set and search otherwise.

    `source` is the run folder that replay reads. Raises SetupError (one line) for an unknown name or missing settings.
    """
    settings = os.environ if env is None else env
    keyed = bool(settings.get("OPENAI_API_KEY", "").strip())
    chosen = name or ("openai" if keyed else "search")
    if chosen not in MAKERS:
        raise SetupError(f"unknown proposer {chosen!r}; known: {', '.join(MAKERS)}")
    why = "" if name else (" (OPENAI_API_KEY is set)" if keyed else " (OPENAI_API_KEY is not set)")
    proposer, what = MAKERS[chosen](settings, source)
    return Choice(proposer, f"proposer: {chosen}{why}: {what}")
