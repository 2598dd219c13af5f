"""`openai`: asks language models behind any OpenAI-compatible endpoint for one candidate at a time.

A model has no authority. It may look things up with the request's read-only tools, where the server has tools at all;
its answer is text from which one code block is taken. A malformed answer goes back with what is wrong, at most three
times in a row. Every answer is kept, redacted, in the run folder, with the calls of tools and their results: what was
paid for or looked up before a crash is not asked again. Candidates of one request are asked for one after the other;
several requests may be made at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kgen.proposers.answers import HOW_TO_ANSWER, MAX_IN_A_ROW, FormatError, extract
from kgen.proposers.base import (
    Budget,
    BudgetError,
    Proposal,
    ProposalRequest,
    ProposerExhausted,
    ProposerFailure,
    SetupError,
    Usage,
)
from kgen.proposers.chat import MAX_ATTEMPTS, OVERSIZE, Chat, Message, Reply
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.models import Models
from kgen.proposers.quoting import capped
from kgen.proposers.render import Prompt, packaged
from kgen.proposers.tools import MAX_ROUNDS, Toolbox, ToolUse, turns
from kgen.proposers.transcript import CALLS, AnswerRecord, Transcript, storable
from kgen.proposers.wire import characters
from kgen.records import Candidate, Origin, canonical_json, sha256_bytes, sha256_text, to_json

MIN_TOKENS = 1_000  # a budget that leaves less than this for an answer is spent
ECHOED = 4_000  # characters of a malformed answer that go back with the complaint

# finish reason -> what to tell the model. "stop" alone means that the text is whole.
UNFINISHED: Mapping[str, FormatError] = {
    "length": FormatError("answer.truncated", f"Your answer was cut at the token limit. Be shorter. {HOW_TO_ANSWER}"),
    OVERSIZE: FormatError("answer.size", f"Your answer was far too long and was dropped. {HOW_TO_ANSWER}"),
    "content_filter": FormatError("answer.refused", f"Your answer was filtered. {HOW_TO_ANSWER}"),
    "refusal": FormatError("answer.refused", f"You refused; the task is to write a GPU kernel. {HOW_TO_ANSWER}"),
}


@dataclass
class _Session:
    """One `propose` call: what is left of it."""

    request: ProposalRequest
    seen: set[str]
    started: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    unusable: int = 0  # malformed answers in a row
    last: str = ""

    @property
    def seconds_left(self) -> float:
        return self.started + self.request.deadline_s - time.monotonic()

    @property
    def attempts_left(self) -> int:
        allowed = self.request.budget.attempts
        return MAX_ATTEMPTS if allowed is None else allowed - self.usage.attempts


@dataclass(frozen=True)
class _Question:
    """What one prompt is asked with."""

    chat: Chat
    role: str
    prompt: Prompt
    tools: Toolbox


class OpenAIProposer:
    """See the module. Needs neither the openai package nor a key before the first `propose`. Thread-safe."""

    name = "openai"
    concurrent = True

    def __init__(
        self, endpoint: Endpoint | None = None, chat: Chat | None = None, models: Models | None = None
    ) -> None:
        """`models`: one for each role; `endpoint` or `chat`: the same for all. Without any, the environment says it."""
        self._endpoint = endpoint
        self._models = models if chat is None else Models.one(chat)

    def propose(self, request: ProposalRequest) -> Proposal:
        """Up to `request.count` candidates. What failed after the first one is said in the proposal's note."""
        models = self._connected()
        priced = all(chat.endpoint.cost_usd(Usage()) is not None for chat in models.chats.values())
        if request.budget.cost_usd is not None and not priced:
            raise SetupError("a cost limit needs prices: set KGEN_PRICE_IN and KGEN_PRICE_OUT (USD per million tokens)")
        session = _Session(request, seen={c.id for c, _ in request.history} | request.taken)
        found: list[Candidate] = []
        for index in range(1, request.count + 1):
            try:
                prompt = packaged().prompt(request, index)
                chat, role = models.chat(prompt.template), models.role(prompt.template)
                found.append(self._candidate(session, _Question(chat, role, prompt, Toolbox(request.tools))))
            except ProposerFailure as failure:
                failure.usage = session.usage
                if not found:
                    raise
                return Proposal(tuple(found), session.usage, note=str(failure))
            session.seen.add(found[-1].id)
        return Proposal(tuple(found), session.usage)

    @property
    def endpoint(self) -> Endpoint:
        """The one that designs. Raises SetupError without one."""
        return self._connected().chat("propose.md").endpoint

    def _connected(self) -> Models:
        if self._models is None:
            self._models = Models.one(Chat(self._endpoint or Endpoint.from_env(os.environ)))
        return self._models

    def _candidate(self, session: _Session, asked: _Question) -> Candidate:
        messages: list[Message] = [
            {"role": "system", "content": asked.prompt.system},
            {"role": "user", "content": asked.prompt.user},
        ]
        rounds = 0  # of calls since the last answer
        while session.unusable < MAX_IN_A_ROW:
            text, outcome = self._answer(session, asked, messages, rounds < MAX_ROUNDS)
            if isinstance(outcome, Candidate):
                session.unusable = 0
                return outcome
            if isinstance(outcome, tuple):
                rounds += 1
                messages += turns(text, outcome)
                continue
            rounds = 0
            session.unusable += 1
            session.last = outcome.code
            messages += [
                {"role": "assistant", "content": capped(text, ECHOED) or "(empty)"},
                {"role": "user", "content": outcome.message},
            ]
        raise ProposerExhausted(f"{MAX_IN_A_ROW} unusable answers in a row, the last one: {session.last}")

    def _answer(
        self, session: _Session, asked: _Question, messages: list[Message], tools: bool
    ) -> tuple[str, Candidate | FormatError | tuple[ToolUse, ...]]:
        """One answer to `messages`: from this run's transcript if it is there, else asked for and kept.

        Text, and what it comes to: a candidate, what is wrong with it, or the tools that were called (if `tools`).
        """
        request, transcript, chat = session.request, Transcript(session.request.run), asked.chat
        question = sha256_bytes(canonical_json([chat.endpoint.model, [dict(m) for m in messages]]))
        kept = self._kept(transcript, question, session)
        if kept is not None:
            return kept
        try:
            tokens = _tokens_left(chat.endpoint, session, messages)
            offered = asked.tools.specs if tools else ()
            reply, usage = chat.ask(
                messages,
                session.seconds_left,
                tokens,
                session.attempts_left,
                offered,
                lambda lost: _tokens_left(chat.endpoint, session, messages, lost),
            )
        except ProposerFailure as failure:
            session.usage += failure.usage
            raise
        session.usage += usage
        text = storable(reply.text)
        used = tuple(asked.tools.use(wanted) for wanted in reply.calls) if offered else ()
        outcome = used or _read(reply, text, request.op.name, session.seen)
        record = AnswerRecord(
            proposer=self.name,
            model=chat.endpoint.model,
            endpoint=chat.endpoint.shown,
            question_sha256=question,
            answer_sha256=sha256_text(text),
            finish=reply.finish,
            outcome=_word(outcome),
            usage=usage,
            tools=used,
            role=asked.role,
            api=chat.endpoint.api,
            **asked.prompt.origin(),
        )
        name = transcript.keep(record, text)
        if isinstance(outcome, Candidate):
            return text, Candidate(outcome.op, outcome.source, self._origin(record, name))
        return text, outcome

    def _kept(
        self, transcript: Transcript, question: str, session: _Session
    ) -> tuple[str, Candidate | tuple[ToolUse, ...]] | None:
        """What came of an answer that was bought before a crash and never reached the history."""
        entry = transcript.find(question)
        if entry is not None and entry[0].outcome == CALLS:
            return entry[1], entry[0].tools
        source = extract(entry[1]) if entry else None
        if entry is None or not isinstance(source, str) or entry[0].candidate in session.seen:
            return None
        return "", Candidate(session.request.op.name, source, self._origin(entry[0], entry[2]))

    def _origin(self, record: AnswerRecord, name: str) -> Origin:
        keys = ("model", "endpoint", "template", "templates_sha256", "prompt_sha256", "answer_sha256", "usage")
        return Origin(self.name, {"answer": name, **{key: to_json(getattr(record, key)) for key in keys}})


def _word(outcome: Candidate | FormatError | tuple[ToolUse, ...]) -> str:
    """What a transcript says of an answer."""
    if isinstance(outcome, tuple):
        return CALLS
    return outcome.code if isinstance(outcome, FormatError) else f"candidate {outcome.id}"


def _read(reply: Reply, text: str, op: str, seen: set[str]) -> Candidate | FormatError:
    """The candidate in a reply, or what to tell the model."""
    if reply.finish != "stop":
        other = FormatError(
            "answer.unfinished", f"Your answer ended with {reply.finish!r}, not normally. {HOW_TO_ANSWER}"
        )
        return UNFINISHED.get(reply.finish, other)
    source = extract(reply.text)
    if isinstance(source, FormatError):
        return source
    candidate = Candidate(op, source, Origin(OpenAIProposer.name))
    if candidate.id in seen:
        return FormatError("answer.duplicate", "This is exactly a candidate that was already tried. Write another one.")
    return candidate


def _tokens_left(endpoint: Endpoint, session: _Session, messages: list[Message], lost: Usage | None = None) -> int:
    """How many tokens the next answer may have; `lost`: attempts at it that failed. Raises BudgetError for too few."""
    budget, used = session.request.budget, session.usage + (lost or Usage())
    prompt = characters(messages) // 3  # an upper estimate for English and code
    limits = [endpoint.max_tokens]
    if session.attempts_left <= 0:
        raise BudgetError(f"the budget of {budget.attempts} requests is spent")
    if budget.tokens is not None:
        limits.append(budget.tokens - used.prompt_tokens - used.completion_tokens - prompt)
    if budget.cost_usd is not None:
        limits.append(_affordable(endpoint, budget, used, prompt))
    if min(limits) < min(MIN_TOKENS, endpoint.max_tokens):
        raise BudgetError(f"the budget is spent: {used.prompt_tokens + used.completion_tokens} tokens used")
    return min(limits)


def _affordable(endpoint: Endpoint, budget: Budget, used: Usage, prompt: int) -> int:
    """Answer tokens that the cost limit still pays for, after the prompt."""
    left = (budget.cost_usd or 0.0) - (used.cost_usd or 0.0) - (endpoint.cost_usd(Usage(prompt_tokens=prompt)) or 0.0)
    if left < 0 or not endpoint.price_out:
        return -1 if left < 0 else endpoint.max_tokens
    return int(left / endpoint.price_out * 1e6)
