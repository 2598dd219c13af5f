"""What the tools of `kgen mcp` do, without the protocol: ops, contracts, the guide, submissions, verdicts, the best.

Every argument comes from a client and is checked here; what is wrong is a `Refused` of one line. Submissions become
runs like those of `kgen propose`, which the worker takes through the same gates; nothing here judges or promotes.
Blocking: call it on threads. Not covered: waiting for a verdict (the server polls).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgen.agents import found, pages
from kgen.agents.labour import IDLE, QUEUED, Labour
from kgen.contract.op import Op
from kgen.diagnosis.words import cell
from kgen.loop.session import begin
from kgen.loop.settings import ARCHS, MINUTES, Settings, read_settings
from kgen.loop.standing import standings
from kgen.ops import REGISTRY
from kgen.proposers.answers import MAX_SOURCE_BYTES, FormatError, source_file
from kgen.proposers.base import Standings
from kgen.proposers.mailbox_words import state, verdict_page
from kgen.proposers.submitted import Submissions, SubmittedProposer
from kgen.records import GATES, Candidate, Origin
from kgen.store.candidates import CandidateFolder
from kgen.store.errors import IntegrityError, StoreError
from kgen.store.runs import RUN, Run, Runs, utc_now

CANDIDATES = 24  # of one run
MAX_NAME = 120  # characters of an id, an op, a topic
_ID = re.compile(r"([0-9A-Za-z][0-9A-Za-z_-]{0,100})/(\d{1,6})")
_RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,100}")
_PARENT = re.compile(r"[0-9a-f]{6,64}")
UNKNOWN_CLIENT = "unknown"


class Refused(ValueError):
    """The client asked for something that is not there, or not allowed: one line that says what would be right."""


@dataclass(frozen=True)
class Matrix:
    """What runs begun here build and prove; as the options of `kgen propose`. Empty: all."""

    archs: tuple[str, ...] = ARCHS
    dims: tuple[str, ...] = ()
    bins: tuple[int, ...] = ()
    candidates: int = CANDIDATES
    minutes: float = MINUTES
    interpret: bool = True


@dataclass(frozen=True)
class Desk:
    """`command` is recorded with the runs that are begun here."""

    runs: Runs
    kernels: Path
    labour: Labour
    matrix: Matrix = field(default_factory=Matrix)
    command: str = "kgen mcp"

    def list_ops(self) -> dict[str, Any]:
        """The ops, their floor times, what serves them and how many runs there are."""
        return {"ops": found.ops(self.kernels, self.runs)}

    def get_contract(self, op: str, axes: Mapping[str, str] | None = None) -> str:
        """What a candidate for an op has to do, as Markdown: the same text that a model is asked with."""
        contract = self._op(op)
        return pages.contract(contract, self._settings(contract, axes or {}))

    def get_guide(self, topic: str = "") -> str:
        """The candidate contract and the list of topics; or the sections of the guide on a topic."""
        try:
            return pages.guide(_short("topic", topic))
        except LookupError as error:
            raise Refused(str(error.args[0])) from None

    def submit(
        self,
        op: str,
        source: str,
        run: str = "",
        axes: Mapping[str, str] | None = None,
        parent: str = "",
        client: str = "",
    ) -> dict[str, Any]:
        """Keep a candidate and have it judged; returns at once with the id to ask for."""
        contract = self._op(op)
        text = source_file(source[: MAX_SOURCE_BYTES + 1])
        if isinstance(text, FormatError):
            raise Refused(f"{text.code}: {text.message}")
        if parent and not _PARENT.fullmatch(parent):
            raise Refused("parent is the id of a candidate, 6 to 64 hexadecimal digits")
        target = self._continued(run, contract, axes) if run else self._begun(contract, axes or {})
        submissions = Submissions(target.path)
        wanted = Candidate(contract.name, text, Origin("")).id
        number = next((n for n in submissions.numbers() if _id(contract.name, submissions, n) == wanted), 0)
        again = bool(number)
        if not number:
            self._room(target, submissions)
            number = submissions.add(text, cell(client[:MAX_NAME]) or UNKNOWN_CLIENT, utc_now(), parent)
        self.labour.wake(target.path)
        said = {"id": f"{target.id}/{number:04d}", "run": target.id, "candidate": wanted[:12], "state": QUEUED}
        note = "this source was submitted to this run before" if again else "ask get_verdict for this id"
        return {**said, "runs_ahead": self.labour.ahead(target.path), "note": note}

    def verdict(self, ident: str) -> dict[str, Any]:
        """How far a submission is. `state`: queued, judging, refused, staged, promotable, incomplete, error, closed."""
        match = _ID.fullmatch(ident[:MAX_NAME])
        if not match:
            raise Refused("id is what submit_candidate returned: RUN/NUMBER")
        run, number = self._run(match[1]), int(match[2])
        submissions = Submissions(run.path)
        if number not in submissions.numbers():
            raise Refused(f"run {run.id} has no submission {number}")
        try:
            op = run.info.op
            candidate = Candidate(op, submissions.read(number)[1], Origin(""))
            folder = next((f for f in run.folders() if f.short_id == candidate.id[:12]), None)
            return {"id": ident, "candidate": candidate.id[:12], **self._standing(run, candidate, folder)}
        except (IntegrityError, StoreError) as error:
            raise Refused(str(error)) from None

    def _standing(self, run: Run, candidate: Candidate, folder: CandidateFolder | None) -> dict[str, Any]:
        """A last verdict is told when the run is put away too: a client may leave as soon as it has it."""
        news, verdict = self.labour.about(run.path), folder.verdict() if folder else None
        settled = run.state != "running" or len(run.folders()) < len(Submissions(run.path).numbers())
        if verdict is not None and settled and (news.state == IDLE or state(verdict) != "error"):
            gates = {r.gate: {"status": r.status.value, "code": r.code} for r in verdict.results}
            now = self._among(run, news.text if news.state == IDLE else "")
            text = verdict_page(candidate, verdict, now)
            return {"state": state(verdict), "gates": gates, **ranked(candidate, now), "text": text}
        if news.error:
            return {"state": "error", "text": f"{news.error} (submit the same source to the same run to try again)"}
        if news.state == IDLE and news.text:
            return {"state": "closed", "text": f"the run ended before it: {news.text}; submit without run for another"}
        if news.state == IDLE:  # this server did not begin it: it was killed, or another one did
            self.labour.wake(run.path)
        done = {g: r.code for g in GATES if folder and (r := folder.result(g)) is not None}
        return {"state": "judging" if folder else QUEUED, "gates": done, "text": news.text or "in the queue"}

    def _among(self, run: Run, ended: str) -> Standings:
        """How the run's candidates stand; `ended`: why it did, as far as this server knows."""
        settings = read_settings(run.info.settings, f"{run.path}/run.json")
        full = len(Submissions(run.path).numbers()) >= settings.candidates
        over = (
            f"the run has had its {settings.candidates} candidates; submit without run for another" if full else ended
        )
        return standings(run, REGISTRY.get(run.info.op), settings, over=over)

    def best(self, op: str) -> dict[str, Any]:
        """The best candidate of all runs here, with its source, and what the kernel set serves."""
        return found.best(self._op(op).name, self.kernels, self.runs)

    def lessons(self, op: str) -> str:
        """What earlier runs taught about an op."""
        return pages.lessons(self._op(op), self.runs.root)

    def _op(self, name: str) -> Op:
        try:
            return REGISTRY.get(_short("op", name))
        except ValueError as error:
            raise Refused(str(error)) from None

    def _settings(self, op: Op, axes: Mapping[str, str]) -> Settings:
        m = self.matrix
        if unknown := [a for a in axes if a not in op.axes]:
            known = ", ".join(op.axes) or "none"
            raise Refused(f"{op.name} has no axis {_short('axis', unknown[0])!r}; its axes: {known}")
        asked = Settings(
            op.name,
            SubmittedProposer.name,
            rounds=m.candidates,
            candidates=m.candidates,
            minutes=m.minutes,
            archs=m.archs,
            dims=m.dims,
            bins=m.bins,
            axes=dict(axes),
            interpret=m.interpret,
            patience=m.candidates,  # the client says when it is enough: a staged candidate does not end the run
        )
        try:
            return asked.checked(op)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _begun(self, op: Op, axes: Mapping[str, str]) -> Run:
        return begin(self.runs, op, self._settings(op, axes), self.command)

    def _continued(self, name: str, op: Op, axes: Mapping[str, str] | None) -> Run:
        run = self._run(name)
        if run.info.op != op.name:
            raise Refused(f"run {run.id} is about {run.info.op}, not {op.name}")
        stored = read_settings(run.info.settings, f"{run.path}/run.json")
        if axes and self._settings(op, axes).axes != stored.axes:
            raise Refused(f"run {run.id} has other axes ({dict(stored.axes) or 'the defaults'}): submit without run")
        return run

    def _run(self, name: str) -> Run:
        """Only runs of this kind in this folder: a client names no paths."""
        path = self.runs.root / name if _RUN.fullmatch(name) else None
        if path is None or not (path / RUN).is_file():
            raise Refused(
                f"there is no run {_short('run', name)!r}: run is what submit_candidate returned, or left out"
            )
        run = Run(path, self.runs.durable)
        proposer = run.info.settings.get("proposer")
        if proposer != SubmittedProposer.name:
            raise Refused(f"run {run.id} is one of the proposer {proposer}: submit without run to begin another")
        return run

    def _room(self, run: Run, submissions: Submissions) -> None:
        most = read_settings(run.info.settings, f"{run.path}/run.json").candidates
        if len(submissions.numbers()) >= most:
            raise Refused(f"run {run.id} has had its {most} candidates: submit without run to begin another")


def ranked(candidate: Candidate, now: Standings) -> dict[str, Any]:
    """`rank` is null for what a gate refused, `best` where nothing is right yet; `value` and `by` are words."""
    place, best = now.place(candidate.id), now.places[0] if now.places else None
    return {
        "rank": {"rank": place.rank, "of": len(now.places), "value": place.value} if place else None,
        "best": {"candidate": best.id[:12], "value": best.value, "by": now.measure} if best else None,
    }


def _id(op: str, submissions: Submissions, number: int) -> str:
    try:
        return Candidate(op, submissions.read(number)[1], Origin("")).id
    except IntegrityError:
        return ""


def _short(what: str, text: str) -> str:
    if len(text) > MAX_NAME:
        raise Refused(f"{what} has {len(text)} characters, at most {MAX_NAME} make sense")
    return text
