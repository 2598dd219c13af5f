"""Makes docs/examples/runs again: one small run for each proposer kind, as `kgen replay RUN --check` repeats it in CI.

    python tests/support/record_runs.py [KIND ...]

The endpoint of the `openai` run is the scripted server of these tests and the mailbox is answered by a thread, with
the answers below; the client of the `mcp` run is the mcp package's own and submits points of the built-in family; what
`tune` varies is an agent's recorded answer with one line added, the declaration. The runs show how kinds of proposers
are recorded and replayed, not what a model can do. Keys, checkpoints and locks are left out, and folders of this
machine are named as they are in the repository.
"""

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from mcp import Client, StdioServerParameters
from mcp.types import Implementation
from support import openai_server as srv
from support.loops import COMMAND, environment, kgen, the_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "runs"
LEFT_OUT = ("kit.key", "graph.sqlite*", ".lock", "report.md", "*.tmp*")
MATRIX = ("--arch", "sm_90a", "--dims", "nano", "--tokens", "8")
POINT = ("--op", "moe_shared", *MATRIX)

WORKED = (ROOT / "docs" / "examples" / "moe_shared.py").read_text()
WRONG_NAME = WORKED.replace("warp_reduction_sum", "warp_reduce_sum")
EIGHT_WARPS = WORKED.replace("WARPS = 4  # a block", "WARPS = 8  # a block")
ANSWERS = (
    srv.answer(WRONG_NAME, "One warp computes one output row; two kernels in a row, the hidden state in a workspace."),
    srv.answer(WORKED, "The compiler does not know `warp_reduce_sum`; the function is called `warp_reduction_sum`."),
    srv.answer(EIGHT_WARPS, "Eight warps a block: half the blocks to schedule, the same loads in flight."),
)
AGENTS_ANSWER = ROOT / "docs" / "examples" / "agents" / "mla_in_proj" / "mailbox" / "0003-answer.py"
TUNED = "SMS = 132  # of an H200\n"
UNDECIDED = ("queued", "judging")
DECLARATION = 'TUNABLES = {"SMS": (32, 132)}  # no words of the agent: this line alone was added, for kgen tune\n'


def search(home: Path) -> None:
    more = ("--proposer", "search", "--seed", "1", "--rounds", "2", "--candidates", "3", "--patience", "2")
    _done(home, *POINT, *more, "--explore", "0", "--no-interpret")


def openai(home: Path) -> None:
    with srv.serving(*map(srv.ok, ANSWERS)) as server:
        given = {"OPENAI_API_KEY": "no-key-needed", "OPENAI_BASE_URL": server.url, "KGEN_MODEL": "scripted-answers"}
        more = ("--proposer", "openai", "--rounds", "3", "--candidates", "3", "--patience", "2")
        _done(home, *POINT, *more, **given)


def mailbox(home: Path) -> None:
    thread = threading.Thread(target=_answer, args=(home / "runs", ANSWERS[:2]), daemon=True)
    thread.start()
    _done(home, *POINT, "--proposer", "mailbox", "--rounds", "2", "--candidates", "2", "--no-interpret")


def replay(home: Path) -> None:
    _done(home, *POINT, "--replay", str(EXAMPLES / "search"), "--no-interpret")


def mcp(home: Path) -> None:
    """Submits a family's point with a wrong name in it, then, as its child, the point itself."""
    points = (path.read_text(encoding="utf-8") for path in sorted((EXAMPLES / "search").glob("0*/kernel.py")))
    right = min(points, key=len)
    wrong = right.replace("cute.autovec_copy", "cute.auto_vec_copy")
    anyio.run(_submitted, home, (wrong, right))


def tune(home: Path) -> None:
    file = home / "mine.py"
    file.write_text(AGENTS_ANSWER.read_text(encoding="utf-8").replace(TUNED, DECLARATION + TUNED), encoding="utf-8")
    done = kgen(home, "tune", file.name, "--op", "mla_in_proj", *MATRIX, "--trials", "2")
    assert done.returncode == 0, done.stderr


async def _submitted(home: Path, sources: tuple[str, ...]) -> None:
    more = ("--candidates", str(len(sources)), "--no-interpret")
    server = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", *MATRIX, *more], env=environment(home), cwd=str(home)
    )
    said: dict[str, Any] = {}
    async with Client(server, client_info=Implementation(name="scripted-client", version="1")) as client:
        for source in sources:
            known = {"run": said["run"], "parent": said["candidate"]} if said else {}
            asked = {"op": "moe_shared", "source": source, **known}
            said = await _content(client, "submit_candidate", asked)
            while (await _content(client, "get_verdict", {"id": said["id"], "wait_s": 20}))["state"] in UNDECIDED:
                pass


async def _content(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    got = await client.call_tool(tool, arguments)
    assert got.structured_content is not None, got
    return got.structured_content


def _answer(runs: Path, answers: tuple[str, ...]) -> None:
    for number, text in enumerate(answers, 1):
        while not (found := list(runs.glob(f"*/mailbox/{number:04d}-prompt.md"))):
            time.sleep(0.2)
        part = found[0].with_name("part")
        part.write_text(text)
        part.rename(found[0].with_name(f"{number:04d}-answer.md"))


def _done(home: Path, *arguments: str, **more: str) -> None:
    done = kgen(home, "propose", *arguments, **more)
    assert done.returncode == 0, done.stderr


KINDS: dict[str, Callable[[Path], None]] = {
    "search": search,
    "openai": openai,
    "mailbox": mailbox,
    "replay": replay,
    "mcp": mcp,
    "tune": tune,
}


def main(kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds or KINDS:
            home = Path(folder) / kind
            home.mkdir()
            (home / "cache").symlink_to(Path(folder), target_is_directory=True)
            KINDS[kind](home)
            shutil.rmtree(EXAMPLES / kind, ignore_errors=True)
            shutil.copytree(the_run(home).path, EXAMPLES / kind, ignore=shutil.ignore_patterns(*LEFT_OUT))
            path = EXAMPLES / kind / "run.json"
            path.write_text(path.read_text().replace(str(EXAMPLES), "docs/examples/runs"))


if __name__ == "__main__":
    main(sys.argv[1:])
