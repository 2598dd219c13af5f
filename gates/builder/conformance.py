"""Runs the conformance list: every line's probe, for real, at every isolation level that works here, in both fences.

As a job the probes run through the builder's own server, in the forks that candidates get; as a tool through the call
that the launch recorder uses. What cannot be tried is told apart, and never counts as holding. Not covered: a level
that does not work here, a GPU in the sandbox, and side channels.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kgen.gates.builder.bait import DOORS, Grounds, Job, laid_out, own_packages
from kgen.gates.builder.outcome import BuilderError, clean
from kgen.gates.builder.warm import WarmServer, bootstrap
from kgen.gates.sandbox import LEVELS, Box, Level, Limits, NoSandboxError, available, choose, run
from kgen.gates.sandbox.lines import CPU, FENCES, FULL, JOB, LEFT_SECONDS, LINES, TOOL, WALL, Line, gap

ARCH = "sm_90a"  # the server wants one; nothing is compiled
CAP = 1 << 20  # bytes of a tool's output
START_SECONDS = 10.0  # until a probe shows that it lives
GRACE_SECONDS = 0.5  # for a sandbox to start, and beyond the second in which leftovers must be gone
SETTLE_SECONDS = 0.3  # for what was sent to arrive, and for processes to start others
ALONE = ("fork-bomb", "threads", "closing", "judge-killed")  # they would disturb the others


class State(StrEnum):
    HOLDS = "holds"
    BROKEN = "does not hold"
    UNTRIED = "cannot be tried here"


@dataclass(frozen=True)
class Result:
    """One line at one level in one fence. `gap`: why the level does not promise it, "" when it does."""

    level: str
    fence: str
    line: str
    state: State
    found: str
    gap: str
    seconds: float

    @property
    def failed(self) -> bool:
        return not self.gap and self.state is not State.HOLDS


@dataclass(frozen=True)
class Report:
    """`why`: level -> why it does not work here, "" when it does. `active`: the level that builds use, "" for none.

    `decisive`: the levels that must keep what they promise.
    """

    active: str
    decisive: tuple[str, ...]
    why: Mapping[str, str]
    results: tuple[Result, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Result, ...]:
        """Promised lines that were not seen to hold, at a level where that matters."""
        return tuple(r for r in self.results if r.level in self.decisive and r.failed)

    @property
    def ok(self) -> bool:
        return {r.level for r in self.results} >= set(self.decisive) != set() and not self.failed


@dataclass(frozen=True)
class Seen:
    """What became of one probe. `left`: seconds from its end to the end of its last process; None: they live on."""

    said: str
    killed: str = ""
    left: float | None = 0.0
    started: bool = True
    broke: str = ""  # why it never ran


def check(levels: Sequence[str] = (), lines: Sequence[Line] = LINES) -> Report:
    """Try the lines at the given levels, which then decide; by default at all, and the one that builds use decides."""
    began = time.monotonic()
    why = {name: reason for name, _, reason in available()}
    try:
        active = choose().name
    except NoSandboxError:
        active = ""
    wanted = [name for name in (levels or LEVELS) if not why[name]]
    with laid_out() as grounds:
        results = [r for name in wanted for kind in FENCES for r in _trial(LEVELS[name], kind, grounds, lines)]
    decisive = tuple(levels) or ((active,) if active else ())
    return Report(active, decisive, why, tuple(results), time.monotonic() - began)


def _trial(level: Level, kind: str, grounds: Grounds, lines: Sequence[Line]) -> list[Result]:
    return Trial(level, kind, grounds, grounds.places()).results([line for line in lines if kind in line.fences])


class Trial:
    """All lines of one level in one fence."""

    def __init__(self, level: Level, kind: str, grounds: Grounds, places: list[str], private: bool = True) -> None:
        """`places`: folders outside that a probe tries to write to; `private`: whether it goes for what is no bait."""
        self._level, self._kind, self._grounds, self._places = level, kind, grounds, places
        self._bait = grounds.bait(level, kind, places, private)
        self._mark = grounds.outsider.mark()

    def results(self, lines: Sequence[Line]) -> list[Result]:
        """In the order of `lines`."""
        seen = self._as_jobs(lines) if self._kind == JOB else self._as_tools(lines)
        if any(line.name == "signals" or line.name in DOORS for line in lines):
            time.sleep(SETTLE_SECONDS)
        written = self._grounds.written(self._places)
        return [self._judge(line, *seen[line.name], written) for line in lines]

    def _as_jobs(self, lines: Sequence[Line]) -> dict[str, tuple[Seen, float]]:
        server = self._server()
        try:
            return self._all(lines, lambda line: self._job(server, line))
        finally:
            server.close()

    def _as_tools(self, lines: Sequence[Line]) -> dict[str, tuple[Seen, float]]:
        """Lines that are neither killed nor looked at afterwards share a sandbox; each has its own process in it."""
        plain = [line for line in lines if not line.ends.get(TOOL) and not line.gone and line.name not in ALONE]
        with ThreadPoolExecutor(1) as pool:
            shared = [pool.submit(self._tool, plain, Limits(), 60.0)] if plain else []
            rest = self._all([line for line in lines if line not in plain], self._one_tool)
        for found in shared:
            seen, seconds = found.result()
            rest |= {line.name: (seen, seconds / len(plain)) for line in plain}
        return rest

    def _all(
        self, lines: Sequence[Line], attempt: Callable[[Line], tuple[Seen, float]]
    ) -> dict[str, tuple[Seen, float]]:
        """Side by side, but for those that would disturb the others. A probe dies with the thread that started it."""
        together = [line for line in lines if line.name not in ALONE]
        with ThreadPoolExecutor(6) as pool:
            tried = pool.map(lambda line: _patiently(attempt, line), together)
            found = dict(zip((line.name for line in together), tried, strict=True))
        return {**found, **{line.name: _patiently(attempt, line) for line in lines if line.name in ALONE}}

    def _server(self) -> WarmServer:
        return WarmServer(self._level, ARCH, self._grounds.jobs, builds=False)

    def _request(self, job: Job, lines: Sequence[Line], limits: Limits, seconds: float) -> dict[str, Any]:
        return {
            "id": job.number,
            "folder": str(job.folder),
            "seconds": seconds,
            "limits": vars(self._level.job_limits(limits)),
            "lines": [line.name for line in lines],
            "bait": {**self._bait, "fifo": str(job.folder / "held")},
        }

    def _job(self, server: WarmServer, line: Line) -> tuple[Seen, float]:
        began = time.monotonic()
        job = self._grounds.job(self._level)
        try:
            if line.name in ("closing", "judge-killed"):
                return self._ended_from_outside(line, job), time.monotonic() - began
            request = self._request(job, [line], _limits(line), line.seconds)
            began = time.monotonic()
            end = server.ask(request, line.seconds + START_SECONDS)
            if not end.fenced:
                return Seen("", broke=f"no fence: {end.output[:200]}"), end.seconds
            kill = FULL if end.flooded else WALL if end.timed_out else CPU if end.returncode < 0 else ""
            ended = began + line.seconds if kill == WALL else time.monotonic()
            return _after(line, job, Seen(end.output, kill), ended), end.seconds
        except BuilderError as error:
            return Seen("", broke=str(error)), time.monotonic() - began
        finally:
            job.close()

    def _one_tool(self, line: Line) -> tuple[Seen, float]:
        return self._tool([line], _limits(line), line.seconds + GRACE_SECONDS)

    def _tool(self, lines: Sequence[Line], limits: Limits, seconds: float) -> tuple[Seen, float]:
        began = time.monotonic()
        job = self._grounds.job(self._level)
        try:
            if lines[0].name == "judge-killed":
                return self._ended_from_outside(lines[0], job), time.monotonic() - began
            request = self._request(job, lines, limits, seconds)
            done = run(*tool(self._level, job.folder, limits), seconds, CAP, json.dumps(request).encode())
            kill = FULL if done.overfull else WALL if done.timed_out else CPU if done.returncode else ""
            ended = began + seconds if kill == WALL else time.monotonic()
            said = clean(done.output.decode("utf-8", "replace"), 1 << 20)
            return _after(lines[0], job, Seen(said, kill), ended), done.seconds
        finally:
            job.close()

    def _ended_from_outside(self, line: Line, job: Job) -> Seen:
        """Start the probe, end what is above it, and see how long it lasts."""
        request = self._request(job, [line], _limits(line), START_SECONDS)
        end = self._closed(request) if line.name == "closing" else self._orphaned(request)
        try:
            if not job.started(START_SECONDS):
                return Seen("", broke="the probe did not start")
            time.sleep(SETTLE_SECONDS)
            began = time.monotonic()
        finally:
            end()
        return _left(job, Seen(""), began)

    def _closed(self, request: dict[str, Any]) -> Callable[[], None]:
        server = self._server()

        def ask() -> None:
            with contextlib.suppress(BuilderError):  # it is closed meanwhile, as is meant
                server.ask(request, START_SECONDS)

        threading.Thread(target=ask, daemon=True).start()
        return server.close

    def _orphaned(self, request: dict[str, Any]) -> Callable[[], None]:
        arguments = (self._level.name, self._kind, str(self._grounds.jobs), json.dumps(request))
        script = f"import sys\nsys.path[:] = {sys.path!r}\nfrom {__name__} import hold\nhold(*{arguments!r})"
        judge = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stderr=subprocess.DEVNULL)

        def kill() -> None:
            judge.kill()
            judge.wait()

        return kill

    def _judge(self, line: Line, seen: Seen, seconds: float, written: list[str]) -> Result:
        state, found = self._state(line, seen, written)
        why = gap(self._level.name, self._level.counts, line.name, self._kind)
        return Result(self._level.name, self._kind, line.name, state, found, why, seconds)

    def _state(self, line: Line, seen: Seen, written: list[str]) -> tuple[State, str]:
        if seen.broke:
            return State.UNTRIED, seen.broke
        door = "signals" if line.name == "signals" else DOORS.get(line.name, "")
        if door and door not in self._grounds.outsider.reachable:
            return State.UNTRIED, f"the bait ({door}) cannot be reached from outside either"
        report = _report(line, seen.said)
        if "untried" in report:
            return State.UNTRIED, str(report["untried"])
        got = [*report.get("got", ()), *self._arrived(line)]
        if line.name == "write-outside":
            got = [g for g in got if g.startswith("opened")] + [f"left {path}" for path in written]
        if line.gone:
            return _gone(line, seen, got)
        ends = line.ends.get(self._kind, ())
        if got:
            return State.BROKEN, "; ".join(got)
        if ends:
            return (State.HOLDS, f"killed: {seen.killed}") if seen.killed in ends else (State.BROKEN, _odd(seen))
        return (State.HOLDS, "refused") if report else (State.UNTRIED, f"the probe said nothing ({_odd(seen)})")

    def _arrived(self, line: Line) -> list[str]:
        """What came to the process outside by this line's door."""
        arrivals = self._grounds.outsider.since(self._mark)
        if line.name == "signals":
            return ["a signal arrived outside"] if any(a.door == "signals" for a in arrivals) else []
        mine = [a for a in arrivals if a.door == DOORS.get(line.name) and self._bait["say"] in a.got]
        asked = [a for a in mine if ("example" in a.got) == (line.name == "dns")]
        return [f"{a.door} arrived outside" for a in asked]


def _patiently(attempt: Callable[[Line], tuple[Seen, float]], line: Line) -> tuple[Seen, float]:
    """A probe that did not come to anything, on a busy machine, is tried once more, with more time."""
    seen, seconds = attempt(line)
    return attempt(replace(line, seconds=3 * line.seconds)) if seen.broke else (seen, seconds)


def _limits(line: Line) -> Limits:
    return replace(Limits(), **line.limits)


def _report(line: Line, said: str) -> dict[str, Any]:
    """The probe's own words about a line, {} without any."""
    for text in reversed(said.splitlines()):
        if text.startswith('{"line": '):
            body: dict[str, Any] = json.loads(text)
            if body["line"] == line.name:
                return body
    return {}


def _after(line: Line, job: Job, seen: Seen, ended: float) -> Seen:
    """`ended`: when the probe was to be over (time.monotonic)."""
    if not line.gone:
        return seen
    return _left(job, seen, ended) if job.started(0) else replace(seen, broke="the probe did not start")


def _left(job: Job, seen: Seen, ended: float) -> Seen:
    gone = job.gone(ended + LEFT_SECONDS + GRACE_SECONDS)
    return replace(seen, left=None if gone is None else max(0.0, gone - ended))


def _gone(line: Line, seen: Seen, got: list[str]) -> tuple[State, str]:
    if seen.left is None or seen.left > LEFT_SECONDS:
        after = f"{seen.left:.2f} s" if seen.left else f"more than {LEFT_SECONDS + GRACE_SECONDS:.1f} s"
        return State.BROKEN, f"processes lived on for {after}"
    if got or (line.ends and seen.killed != WALL):
        return State.BROKEN, "; ".join(got) or _odd(seen)
    return State.HOLDS, f"gone after {seen.left:.2f} s"


def _odd(seen: Seen) -> str:
    last = (seen.said.strip().splitlines() or [""])[-1][:200]
    return f"killed: {seen.killed}" if seen.killed else f"ended by itself: {last}" if last else "ended by itself"


def tool(level: Level, folder: Path, limits: Limits) -> tuple[Level, Box, list[str]]:
    """How the probes run as a tool: the arguments of `run` up to the command; the request goes to its stdin."""
    text = bootstrap("kgen.gates.sandbox.probes:main", [])
    box = Box(folder, tuple(own_packages()), {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}, limits)
    return level, box, [sys.executable, "-I", "-S", "-c", text]


def hold(level: str, kind: str, jobs: str, request: str) -> None:
    """In a process of its own, which is to be killed: start a probe and wait for it."""
    body = json.loads(request)
    limits = Limits(**body["limits"])
    LEVELS[level].prepare(Path(body["folder"]))  # its sandbox is another user's
    if kind == TOOL:
        run(*tool(LEVELS[level], Path(body["folder"]), limits), START_SECONDS, CAP, request.encode())
        return
    WarmServer(LEVELS[level], ARCH, Path(jobs), builds=False).ask(body, START_SECONDS)
