"""Small runs of the real loop: sources that build quickly, a proposer that hands out a list, and the CLI as a process.

recording(folder, sources)       a run folder that `--proposer replay` reads
kgen("propose", ...)             the finished process;  started("propose", ...) one that is still running
cold("propose", ...)             the finished process, started as a user's is; the others are forked (support/forked.py)
called(["propose", ...])         the same without a new process: returns the exit code
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.builds import shared
from support.forked import Forked

from kgen.cli import boundary
from kgen.cli.app import build
from kgen.contract import Op
from kgen.gates.compile import CompileGate
from kgen.loop.session import begin
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.pool.local import LocalExecutor
from kgen.proposers.base import Proposal, ProposalRequest, ProposerExhausted
from kgen.records import Candidate, Origin
from kgen.store.runs import Run, Runs

OP = REGISTRY.get("moe_shared")
ROW_COPY = (Path(__file__).parent / "row_copy.py").read_text()
SMALL = ("--arch", "sm_90a", "--dims", "nano", "--tokens", "1", "--tokens", "8", "--no-interpret")
SECONDS = 120.0


def source(name: str, threads: int = 128) -> str:
    """A candidate that passes every check but numbers; another name is another candidate."""
    return ROW_COPY.replace("THREADS = 128", f"THREADS = {threads}") + f"\n# {name}\n"


def fails_at(tokens: int, name: str = "") -> str:
    """A candidate that does not build at this bin."""
    head, _, tail = source(name).partition("    return RowCopy(")
    return f"{head}    if tokens == {tokens}:\n        raise ValueError('no such tile')\n    return RowCopy({tail}"


BROKEN = "def build(dims, tokens, arch)\n    return None\n"
FORBIDDEN = "import os\n" + ROW_COPY


class ListProposer:
    """Hands out lists of sources, one list a round, and keeps the requests that it was given."""

    name = "list"

    def __init__(self, *rounds: Sequence[str]) -> None:
        self.rounds, self.requests = list(rounds), list[ProposalRequest]()

    def propose(self, request: ProposalRequest) -> Proposal:
        self.requests.append(request)
        if not self.rounds:
            raise ProposerExhausted("the list is used up")
        made = tuple(Candidate(OP.name, text, Origin("list")) for text in self.rounds.pop(0))
        return Proposal(made[: request.count])


class Here(LocalExecutor):
    """The executor of a run in this process, with the builder of all tests: starting another shows nothing new."""

    def gate(self, op: Op, cache: Path, unsafe: bool = False) -> CompileGate:
        assert not unsafe
        return CompileGate(op, cache, shared(), workers=self.width)


def recording(folder: Path, sources: Sequence[str]) -> Path:
    """A run folder with these candidates, for replay."""
    settings = Settings(OP.name, "list", archs=("sm_90a",), dims=("nano",), bins=(1, 8), interpret=False).checked(OP)
    run = begin(Runs(folder), OP, settings, "kgen propose")
    with run.lock():
        for text in sources:
            run.add(Candidate(OP.name, text, Origin("list")))
    return run.path


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KGEN_", "OPENAI_", "COLUMNS"))}
    places = {"KGEN_RUNS": home / "runs", "KGEN_SET": home / "set", "KGEN_CACHE": home / "cache"}
    return {**kept, **{k: str(v) for k, v in places.items()}, **more}


COMMAND = (sys.executable, "-I", "-c", "from kgen.cli import main; main()")


def started(home: Path, *arguments: str, **more: str) -> Forked:
    """The CLI in its own process; `more` are variables of its environment."""
    return Forked(arguments, environment(home, **more), home)


def kgen(home: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    process = started(home, *arguments, **more)
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(arguments, process.wait(), out, err)


def cold(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A new interpreter, which has to import all that the command needs."""
    command = [*COMMAND, *arguments]
    return subprocess.run(
        command, env=environment(home), cwd=home, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def called(arguments: Sequence[str]) -> int:
    return boundary.run(build(), list(arguments))


def the_run(home: Path) -> Run:
    (run,) = Runs(home / "runs").list()
    return run


def killed_when(home: Path, ready: Callable[[Run], bool], how: int, *arguments: str) -> Forked:
    """Start a command, wait until its run folder says that it is ready, and send it a signal."""
    process = started(home, *arguments)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        runs = Runs(home / "runs").list()
        if runs and ready(runs[0]):
            os.kill(process.pid, how)
            break
        time.sleep(0.01)
    assert process.poll() is None or process.returncode == -signal.SIGKILL, process.communicate()
    return process


def stamps(run: Run) -> dict[str, int]:
    """Modification times of everything that is a finished piece of work."""
    names = ("kernel.py", "origin.json", "quick.json", "builds.json", "compile.json", "verdict.json")
    return {str(p): p.stat().st_mtime_ns for name in names for p in run.path.glob(f"*/{name}")}


def only_json(text: str) -> Any:
    """The document, which must be all that there is."""
    return json.loads(text)
