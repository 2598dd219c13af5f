"""Starts the ranks of a part together, watches them, and ends all of them when one is lost or time is up.

    with running("check", job, ranks=2, device="cuda", deadline=60) as part:
        part.status       done, or the first of lost, hung, fault, crashed, error that a rank ended with
        part.outcomes     a kgen.gates.runner.host.Outcome a rank

A rank that dies is named to all others at once, through the store that this process serves. Those that hang in a kernel
and cannot hear it are killed GRACE_SECONDS later: a loss never becomes a hang. The device's lease and quarantine, which
the gates of one rank use, are not taken here.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kgen.gates.ranks import store
from kgen.gates.ranks.lose import STEADY
from kgen.gates.ranks.transport import NO_MULTICAST
from kgen.gates.runner.child import child_environment, command, end
from kgen.gates.runner.host import Outcome, json_of, private_folder, read

GRACE_SECONDS = 9.0  # that the others have to say for themselves what they saw
POLL_SECONDS = 0.02
LOST, HUNG, DONE = "lost", "hung", "done"
WORST = (LOST, "crashed", "fault", HUNG, "error")  # a rank's death explains its peers' waits


@dataclass(frozen=True)
class Part:
    """How a part ended on all ranks. `seconds` from the start of the first to the end of the last."""

    kind: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    lost: str = ""  # which rank was lost first, and how
    after: float = 0.0  # seconds between that loss and the end of the last rank

    @property
    def status(self) -> str:
        found = {o.status for o in self.outcomes}
        return next((word for word in WORST if word in found), DONE)

    @property
    def message(self) -> str:
        bad = [f"rank {rank} {o.status}: {o.message}" for rank, o in enumerate(self.outcomes) if o.status != DONE]
        return "; ".join(bad)


@dataclass
class _Rank:
    number: int
    folder: Path
    process: "subprocess.Popen[bytes]"
    ended: float = 0.0  # when it was seen to have ended
    limit: str = ""


@contextlib.contextmanager
def running(
    kind: str,
    job: Mapping[str, Any],
    *,
    ranks: int,
    device: str,
    deadline: float,
    kill: int = -1,
    need_bytes: int = 0,
) -> Iterator[Part]:
    """Run a part on all ranks to its end. `kill`: the rank to kill -9 once all ranks are steady (kind "lose")."""
    server = store.serve()
    folder = private_folder(need_bytes)
    started = time.monotonic()
    found: list[_Rank] = []
    try:
        for number in range(ranks):
            found.append(_start(kind, job, number, ranks, device, folder, server.port))
        lost, since = _watch(found, server, started + deadline, kill)
        finished = time.monotonic()
        outcomes = tuple(_outcome(each, finished - started) for each in found)
        yield Part(kind, outcomes, finished - started, lost, finished - since if lost else 0.0)
    finally:
        for each in found:
            end(each.process)
        shutil.rmtree(folder, ignore_errors=True)


def _start(kind: str, job: Mapping[str, Any], number: int, ranks: int, device: str, folder: Path, port: int) -> _Rank:
    own = folder / f"rank{number}"
    own.mkdir()
    told = {**job, "kind": kind, "rank": number, "ranks": ranks, "device": device, "port": port}
    (own / "job.json").write_text(json.dumps({**told, "shared": str(folder), "parent": os.getpid()}))
    environment = {**child_environment(), **NO_MULTICAST}
    if device == "cpu":
        environment["OMP_NUM_THREADS"] = "1"
    with (own / "log").open("wb") as log:
        process = subprocess.Popen(
            command("kgen.gates.ranks.worker", str(own / "job.json"), str(own)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=own,
            start_new_session=True,
        )
    return _Rank(number, own, process)


def _watch(ranks: list[_Rank], server: Any, until: float, kill: int) -> tuple[str, float]:
    """Until all have ended. Returns which rank was lost first and how, and when that was."""
    lost, since = "", 0.0
    while any(not each.ended for each in ranks):
        now = time.monotonic()
        for each in (r for r in ranks if not r.ended and r.process.poll() is not None):
            each.ended = now
            if not lost and (said := _failed(each)):
                lost, since = said, now
                server.set(store.LOST, lost)
        if kill >= 0 and all(_at(each) == STEADY for each in ranks):
            os.kill(ranks[kill].process.pid, signal.SIGKILL)
            kill = -1
        if now > until or (lost and now > since + GRACE_SECONDS):
            for each in (r for r in ranks if not r.ended):
                each.limit = f"killed {GRACE_SECONDS:.0f} s after {lost}" if lost else "not finished in time"
                end(each.process)
        time.sleep(POLL_SECONDS)
    return lost, since


def _failed(rank: _Rank) -> str:
    """What to tell the others of a rank that has ended, "" when it ended well."""
    code = rank.process.returncode
    if code:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"rank {rank.number} ended with {how}"
    result = json_of(rank.folder / "result.json")
    if result.get("done"):
        return ""
    return f"rank {rank.number} ended: {result.get('fault') or result.get('error') or 'without a result'}"[:1000]


def _at(rank: _Rank) -> str:
    return str(json_of(rank.folder / "at").get("where", ""))


def _outcome(rank: _Rank, seconds: float) -> Outcome:
    outcome = read(rank.folder, rank.process.returncode, rank.limit, seconds)
    if rank.process.returncode and not rank.limit:
        return replace(outcome, status=LOST, message=outcome.message)
    return outcome
