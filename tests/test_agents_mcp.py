"""`kgen mcp` driven by the mcp package's own client: all processes are real.

One session: ops, contract, a right candidate, a broken one; then the server is killed over a third one, and the run is
resumed. Not covered: what each tool refuses (test_agents_desk).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import Implementation
from support.loops import COMMAND, environment, kgen, the_run

from kgen.agents.desk import Desk
from kgen.agents.labour import Labour
from kgen.store import Run, Runs

GOOD = (Path(__file__).parents[1] / "docs/examples/moe_shared.py").read_text()
BROKEN = GOOD.replace("warp_reduction_sum", "no_such_reduction")
SERVER = ("mcp", "--arch", "sm_90a", "--dims", "nano", "--tokens", "1")
STAGED = ["compile.pass", "numeric.ptx_pass", "fullmodel.no_gpu", "perf.no_gpu"]
UNDECIDED = ("queued", "judging")
TOOLS = ("list_ops", "get_contract", "get_guide", "submit_candidate", "get_verdict", "best", "lessons")


@dataclass
class Session:
    """What a client saw, and what was there after the server was killed."""

    home: Path
    tools: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    resumed: "subprocess.CompletedProcess[str] | None" = None

    @property
    def run(self) -> Run:
        return the_run(self.home)


def parameters(home: Path, cache: Path) -> StdioServerParameters:
    env = environment(home, KGEN_CACHE=str(cache))
    return StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *SERVER], env=env, cwd=str(home))


async def talk(home: Path, cache: Path, conversation: Callable[[Client], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        me = Implementation(name="a test", version="7")
        client = await stack.enter_async_context(Client(parameters(home, cache), client_info=me))
        await conversation(client)


async def decided(client: Client, ident: str) -> dict[str, Any]:
    while True:
        got = await client.call_tool("get_verdict", {"id": ident, "wait_s": 20})
        content = got.structured_content
        assert content is not None, got
        if content["state"] not in UNDECIDED:
            return content


async def submitted(client: Client, source: str, **more: str) -> dict[str, Any]:
    got = await client.call_tool("submit_candidate", {"op": "moe_shared", "source": source, **more})
    assert got.structured_content is not None, got
    return got.structured_content


async def refusal(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    got = await client.call_tool(tool, arguments)
    assert got.is_error
    return str(got.content[0].text)


def killed_server(home: Path) -> None:
    """Kill -9 the server of this home: the parent of the worker, which notices and stops."""
    servers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                cwd = (entry / "cwd").readlink()
            except OSError:
                continue
            if cwd == home and b"mcp" in command:
                servers.append(int(entry.name))
    assert len(servers) == 1, servers
    os.kill(servers[0], signal.SIGKILL)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> Session:
    seen = Session(tmp_path_factory.mktemp("session"))

    async def first(client: Client) -> None:
        seen.tools = [t.name for t in (await client.list_tools()).tools]
        listed = (await client.call_tool("list_ops", {})).structured_content
        assert listed is not None
        seen.said["ops"] = listed
        for tool, arguments in (
            ("get_contract", {"op": "moe_shared"}),
            ("get_guide", {}),
            ("lessons", {"op": "moe_shared"}),
        ):
            seen.texts[tool] = str((await client.call_tool(tool, arguments)).content[0].text)
        good = seen.said["good"] = await submitted(client, GOOD)
        bad = seen.said["bad"] = await submitted(client, BROKEN, run=good["run"], parent=good["candidate"])
        seen.errors["op"] = await refusal(client, "submit_candidate", {"op": "nope", "source": GOOD})
        seen.errors["missing"] = await refusal(client, "submit_candidate", {"op": "moe_shared"})
        seen.errors["type"] = await refusal(client, "get_verdict", {"id": good["id"], "wait_s": "long\nago"})
        seen.errors["tool"] = await refusal(client, "promote", {"op": "moe_shared"})
        seen.said["good verdict"] = await decided(client, good["id"])
        seen.said["bad verdict"] = await decided(client, bad["id"])
        third = seen.said["third"] = await submitted(client, BROKEN + "# once more\n", run=good["run"])
        while (await client.call_tool("get_verdict", {"id": third["id"]})).structured_content["state"] == "queued":
            await anyio.sleep(0.02)
        killed_server(seen.home)

    anyio.run(talk, seen.home, kept, first)
    while seen.run.state == "running":  # its worker has noticed, and puts the run down
        time.sleep(0.05)
    seen.resumed = kgen(seen.home, "resume", seen.run.id, KGEN_CACHE=str(kept))
    desk = Desk(Runs(seen.home / "runs"), seen.home / "set", Labour(kept, seen.home / "set"))
    seen.said["third verdict"] = desk.verdict(seen.said["third"]["id"])
    seen.said["good again"] = desk.verdict(seen.said["good"]["id"])
    seen.said["best"] = desk.best("moe_shared")
    return seen


def test_the_tools_are_those_of_the_loop_and_none_of_them_promotes(session: Session) -> None:
    assert sorted(session.tools) == sorted(TOOLS)
    assert "nknown tool" in session.errors["tool"]


def test_an_agent_learns_the_ops_the_task_and_the_rules(session: Session) -> None:
    assert "moe_shared" in [op["name"] for op in session.said["ops"]["ops"]]
    assert "# Task: `moe_shared`" in session.texts["get_contract"]
    assert "The candidate contract" in session.texts["get_guide"]
    assert "moe_shared" in session.texts["lessons"]


def test_a_right_candidate_is_staged_by_the_gates_of_any_run(session: Session) -> None:
    verdict = session.said["good verdict"]
    assert verdict["state"] == "staged"
    assert [verdict["gates"][g]["code"] for g in verdict["gates"]] == STAGED
    folders = session.run.folders()
    stored = folders[0].verdict()
    assert stored is not None and [r.code for r in stored.results] == STAGED
    origin = folders[0].candidate().origin
    assert (origin.proposer, origin.detail["client"]) == ("mcp", "a_test/7")


def test_a_broken_candidate_is_refused_with_the_compilers_words(session: Session) -> None:
    verdict = session.said["bad verdict"]
    assert verdict["state"] == "refused" and verdict["gates"]["compile"]["code"] == "compile.name"
    assert "no_such_reduction" in verdict["text"] and "<data id=" in verdict["text"]


def test_the_id_comes_before_the_verdict_and_submissions_queue(session: Session) -> None:
    assert session.said["good"]["state"] == session.said["bad"]["state"] == "queued"
    assert session.said["good"]["id"] != session.said["bad"]["id"]
    assert session.said["good"]["run"] == session.said["bad"]["run"] == session.run.id


def test_junk_is_one_line_each(session: Session) -> None:
    assert "known ops: attn_res" in session.errors["op"]
    assert "source: Field required" in session.errors["missing"]
    assert "wait_s" in session.errors["type"]
    assert not [text for text in session.errors.values() if "\n" in text]


def test_a_server_that_was_killed_over_a_candidate_loses_nothing(session: Session) -> None:
    assert session.said["third verdict"]["state"] == "refused"
    assert session.said["good again"] == session.said["good verdict"]
    assert [f.number for f in session.run.folders()] == [1, 2, 3]
    assert session.resumed is not None and session.resumed.returncode == 4  # waits for the next candidate
    assert f"run {session.run.id} waits for a candidate" in session.resumed.stderr


def test_the_best_is_a_staged_candidate_with_its_source(session: Session) -> None:
    best = session.said["best"]
    assert best["candidate"]["state"] == "staged" and best["candidate"]["source"].startswith(GOOD.rstrip()[:200])
    assert best["candidate"]["run"] == session.run.id and best["staged"] == 1


def test_stdout_carries_the_protocol_only_whatever_comes_and_a_signal_ends_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, *SERVER],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    junk = [
        "not json",
        "[" * 5000,
        '{"jsonrpc": "2.0", "id": 1}',
        '{"jsonrpc": "2.0", "method": 5}',
        "\x00\x01",
        "null",
    ]
    question = {"jsonrpc": "2.0", "id": 9, "method": "initialize", "params": hello}
    for line in [*junk, "y" * 3_000_000, json.dumps(question)]:
        process.stdin.write(line + "\n")
    process.stdin.flush()
    while (said := json.loads(process.stdout.readline())).get("id") != 9:
        assert said["jsonrpc"] == "2.0"
    assert said["result"]["serverInfo"]["name"] == "kgen"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    assert "Traceback (most recent call last)" not in err


def test_without_the_package_the_command_says_what_to_install(tmp_path: Path) -> None:
    script = "import sys; sys.modules['mcp'] = None; from kgen.cli import main; main()"
    command = [sys.executable, "-I", "-c", script, "mcp"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1 and "pip install 'kgen[mcp]'" in done.stderr


def test_kgen_agents_prints_the_page(tmp_path: Path) -> None:
    done = kgen(tmp_path, "agents")
    assert done.returncode == 0 and (Path(__file__).parents[1] / "AGENTS.md").read_text().startswith(done.stdout)
