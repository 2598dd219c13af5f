"""Who writes candidates: search, openai, mailbox, replay. All of them speak the protocol of `base`."""

from kgen.proposers.base import (
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
