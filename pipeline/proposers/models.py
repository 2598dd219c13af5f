"""Which model is asked for what: one endpoint for each role, chosen by the template that a prompt comes from.

A cheap model can repair while a strong one designs; each has its own protocol, temperature, effort and prices. Not
covered: more than one endpoint address in a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.config import OPTIMISE, REPAIR, ROLES, Config
from kgen.config.keys import DESIGN
from kgen.proposers.chat import Chat
from kgen.proposers.endpoint import Endpoint

# template -> role; what is not here designs: it asks for something new
ROLE_OF: Mapping[str, str] = {"repair.md": REPAIR, "optimise.md": OPTIMISE, "crossover.md": OPTIMISE}


@dataclass(frozen=True)
class Models:
    """A Chat for each role. Roles that ask the same endpoint alike share one."""

    chats: Mapping[str, Chat]

    @classmethod
    def of(cls, config: Config, env: Mapping[str, str]) -> Models:
        """Raises SetupError without a usable key or URL."""
        endpoints = {role: Endpoint.of(config, env, role) for role in ROLES}
        made = {endpoint: Chat(endpoint) for endpoint in dict.fromkeys(endpoints.values())}
        return cls({role: made[endpoint] for role, endpoint in endpoints.items()})

    @classmethod
    def one(cls, chat: Chat) -> Models:
        """The same for every role."""
        return cls(dict.fromkeys(ROLES, chat))

    def role(self, template: str) -> str:
        return ROLE_OF.get(template, DESIGN)

    def chat(self, template: str) -> Chat:
        return self.chats[self.role(template)]

    @property
    def line(self) -> str:
        """For the user: which models, where."""
        names = {role: chat.endpoint.model for role, chat in self.chats.items()}
        shown = self.chats[DESIGN].endpoint.shown
        if len(set(names.values())) == 1:
            return f"model {names[DESIGN]} at {shown}"
        return f"models {', '.join(f'{name} ({role})' for role, name in names.items())} at {shown}"
