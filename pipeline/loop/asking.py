"""The asks of a plan put to the proposer: one after the other, or several at once where it can answer so.

    ask_all(proposer, request, asks, parallel) -> Answers      candidates in the order of the asks, never of the answers

What one ask fails with does not lose what the others gave. Not covered: what is asked for (`plan`).

`at_once` is not `building.pool`: that one waits for its threads at the end, because they write into the run's folder; a
request to an endpoint writes nothing, cannot be stopped, and may take minutes, so an interrupt has to leave it behind.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from kgen.proposers.base import (
    Ask,
    Budget,
    BudgetError,
    Proposal,
    ProposalRequest,
    Proposer,
    ProposerExhausted,
    ProposerFailure,
    Together,
    Usage,
)
from kgen.records import Candidate, Origin

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Answers:
    """`failures`: of asks that came to nothing for good or for now. `pending`: what a person has still to do."""

    candidates: tuple[Candidate, ...]
    usage: Usage
    notes: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    failures: tuple[ProposerFailure, ...] = ()


Outcome = Proposal | ProposerFailure


def ask_all(proposer: Proposer, request: ProposalRequest, asks: Sequence[Ask], parallel: int) -> Answers:
    """`request` holds what all asks share. Raises what is no ProposerFailure."""
    end = time.monotonic() + request.deadline_s
    if getattr(proposer, "concurrent", False):
        single = [each for ask in asks for each in singles(ask)]
        requests = [_for(request, ask, share=len(single)) for ask in single]
        return _together(single, at_once([partial(_asked, proposer, r, end) for r in requests], parallel))
    if isinstance(proposer, Together):
        single = [each for ask in asks for each in singles(ask)]
        proposals = proposer.propose_all([_for(request, ask) for ask in single])
        return _together(single[: len(proposals)], proposals)
    outcomes, taken = list[Outcome](), request.taken
    for ask in asks:
        outcome = _asked(proposer, replace(_for(request, ask), taken=taken), end)
        outcomes.append(outcome)
        if isinstance(outcome, ProposerFailure) or outcome.pending:
            break  # the next one would be told the same
        taken |= {c.id for c in outcome.candidates}
    return _together(asks[: len(outcomes)], outcomes)


def singles(ask: Ask) -> list[Ask]:
    """An ask for several candidates as so many asks for one."""
    return [replace(ask, count=1, index=i, of=ask.count) for i in range(1, ask.count + 1)]


def _for(request: ProposalRequest, ask: Ask, share: int = 1) -> ProposalRequest:
    """`share`: how many requests divide what may be spent."""
    usd = request.budget.cost_usd
    budget = request.budget if usd is None else Budget(usd / share, request.budget.tokens, request.budget.attempts)
    return replace(request, ask=ask, count=ask.count, budget=budget)


def _asked(proposer: Proposer, request: ProposalRequest, end: float) -> Outcome:
    try:
        return proposer.propose(replace(request, deadline_s=max(1.0, end - time.monotonic())))
    except ProposerFailure as failure:
        return failure


def _together(asks: Sequence[Ask], outcomes: Sequence[Outcome]) -> Answers:
    candidates: dict[str, Candidate] = {}
    usage = Usage()
    for ask, outcome in zip(asks, outcomes, strict=True):
        usage = usage + outcome.usage
        for candidate in outcome.candidates if isinstance(outcome, Proposal) else ():
            candidates.setdefault(candidate.id, descended(candidate, ask))
    proposals = [o for o in outcomes if isinstance(o, Proposal)]
    return Answers(
        tuple(candidates.values()),
        usage,
        tuple(dict.fromkeys(o.note for o in proposals if o.note)),
        tuple(o.pending for o in proposals if o.pending),
        tuple(o for o in outcomes if isinstance(o, ProposerFailure)),
    )


def descended(candidate: Candidate, ask: Ask) -> Candidate:
    """With the ask that it answers in its origin. Parents that the proposer names itself are the truer ones."""
    detail = {"ask": ask.number, "kind": ask.kind, "parents": list(ask.parents), **candidate.origin.detail}
    return replace(candidate, origin=Origin(candidate.origin.proposer, detail))


def for_good(failure: ProposerFailure) -> bool:
    """Whether asking again would end alike: nothing more will come, or may be spent."""
    return isinstance(failure, ProposerExhausted | BudgetError)


def at_once(calls: Sequence[Callable[[], Any]], width: int) -> list[Any]:
    """What the calls return, in their order, at most `width` at a time; the first exception is raised.

    On threads that an interrupt leaves behind: a request that nobody waits for any more must not hold up the end.
    """
    if len(calls) == 1 or width == 1:
        return [call() for call in calls]
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, Any, Exception | None]] = SimpleQueue()
    for index in range(len(calls)):
        todo.put(index)

    def work() -> None:
        with suppress(Empty):
            while True:
                index = todo.get_nowait()
                try:
                    done.put((index, calls[index](), None))
                except Exception as error:  # noqa: BLE001 - raised again where it is waited for
                    done.put((index, None, error))

    for number in range(min(width, len(calls))):
        threading.Thread(target=work, name=f"kgen-ask-{number}", daemon=True).start()
    results: dict[int, Any] = {}
    while len(results) < len(calls):
        with suppress(Empty):
            index, result, error = done.get(timeout=POLL_SECONDS)
            if error is not None:
                raise error
            results[index] = result
    return [results[index] for index in range(len(calls))]
