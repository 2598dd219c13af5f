"""A run whose language model's endpoint misbehaves: how it ends, and that it can be taken up when the endpoint is well.

The loop, the proposer and the client are the real ones, the server is a real one on the loopback interface; pauses
between attempts are added up instead of slept.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from exploits.harness.off import Off
from faults.harness.desk import Desk
from faults.harness.swapped import without
from support import openai_server as srv
from support.loops import FORBIDDEN, OP

from kgen.cli import boundary
from kgen.loop import rounds, session
from kgen.loop.settings import Settings, read_settings
from kgen.proposers import chat, endpoint, openai_chat
from kgen.proposers.base import ProposerFailure
from kgen.proposers.transcript import Transcript
from kgen.store import Run, Runs

CHAT, FAULTS, OPENAI, ANSWERS = (
    "kgen.proposers.chat",
    "kgen.proposers.faults",
    "kgen.proposers.openai_chat",
    "kgen.proposers.answers",
)
KEY = "sk-fault-0123456789abcdef"
GOOD = srv.answer(FORBIDDEN)  # taken as a candidate, and refused by the first gate: no build is needed
SECONDS = 20.0
LATE = 1.5  # seconds after its deadline that a run may end


@dataclass(frozen=True)
class Endpoint:
    """`script`: what the server does; the last one repeats. `says`: words of the one line, or of the round's note.

    `seconds`: of the run. `again`: it is taken up afterwards, when the endpoint is well. The answer tells the exit code
    or the outcome, the requests and the pauses between them; "late": after the deadline; "unclear": without `says`.
    """

    script: tuple[Callable[[], srv.Behaviour], ...]
    says: tuple[str, ...] = ()
    stream: bool = False
    seconds: float = SECONDS
    again: bool = False

    def code(self, desk: Desk, off: Off) -> str:
        run = begun(desk.fresh(), self.seconds)
        pauses: list[float] = []
        with without(off), srv.serving(*[make() for make in self.script]) as server:
            started = time.monotonic()
            ended = drive(run, server, self.stream, pauses)
            late = time.monotonic() - started > self.seconds + LATE
            asked = len(server.seen)
        unclear = ended[0] != "refused" and any(word not in ended[1] for word in self.says)
        kept = requests_recorded(run)
        assert off.changes or kept == asked, f"{kept} requests are on record, {asked} were made"
        if self.again and not off.changes:
            taken_up(run)
        waits = f", waits {sum(pauses):.1f} s" if pauses else ""
        end = ", late" if late else ", unclear" if unclear else ""
        return f"{ended[0]}, {asked} request{'s' * (asked != 1)}{waits}{end}"


def begun(home: Path, seconds: float = SECONDS) -> Run:
    asked = Settings(
        OP.name, "openai", candidates=1, minutes=seconds / 60, archs=("sm_90a",), dims=("nano",), bins=(1,),
        interpret=False,
    )  # fmt: skip
    return session.begin(Runs(home / "runs"), OP, asked.checked(OP), "kgen propose")


def drive(run: Run, server: srv.Server, stream: bool, pauses: list[float], key: str = KEY) -> tuple[str, str]:
    """("exit 4", the line) when the proposer failed, else (outcome, why it ended)."""
    where = endpoint.Endpoint(api_key=key, base_url=server.url, model="m", stream=stream)
    asker = openai_chat.OpenAIProposer(chat=chat.Chat(where, sleep=pauses.append))
    try:
        ended = session.work_on(run, OP, stored(run), asker, run.path.parent.parent / "cache")
    except ProposerFailure as failure:
        line = boundary._line(failure)
        assert "\n" not in line and len(line) < 900 and boundary.exit_code(failure) in (3, 4)
        assert run.state == "interrupted"
        return f"exit {boundary.exit_code(failure)}", line
    return ended.outcome, ended.why


def stored(run: Run) -> Settings:
    return read_settings(run.info.settings, "run.json")


def taken_up(run: Run) -> None:
    """The endpoint is well again: the same run gets its candidate, with one request."""
    settings = replace(stored(run), minutes=1.0)
    with srv.serving(srv.ok(GOOD)) as server:
        where = endpoint.Endpoint(api_key=KEY, base_url=server.url, model="m")
        ended = session.work_on(run, OP, settings, openai_chat.OpenAIProposer(where), run.path.parent.parent / "cache")
        assert (ended.outcome, len(server.seen), run.state) == ("refused", 1, "finished")


def requests_recorded(run: Run) -> int:
    """By the rounds, failed and not."""
    failed = run.path / rounds.FOLDER / "0001-failed.json"
    lost = rounds.read_record(rounds.Failed, failed).usage["attempts"] if failed.exists() else 0
    return int(lost) + sum(int(r.usage.get("attempts", 0)) for r in rounds.read_rounds(run))


def transcript(run: Run) -> list[str]:
    """What became of each kept answer."""
    kept = Transcript(run.path)
    return [entry[0].outcome for n in kept.numbers() if (entry := kept.read(n))]
