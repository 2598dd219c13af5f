"""Who writes candidates: search, openai, mailbox, replay. All of them speak the protocol of `base`."""

from kgen.proposers.base import (
    Ask,
    Budget,
    BudgetError,
    History,
    Proposal,
    ProposalRequest,
    Proposer,
    ProposerError,
    ProposerExhausted,
    ProposerFailure,
    SetupError,
    Usage,
)

__all__ = [
    "Ask",
    "Budget",
    "BudgetError",
    "History",
    "Proposal",
    "ProposalRequest",
    "Proposer",
    "ProposerError",
    "ProposerExhausted",
    "ProposerFailure",
    "SetupError",
    "Usage",
]
