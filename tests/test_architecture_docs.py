"""The documents and the source say the same: gate codes, commands, targets of the Makefile, links."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkout import ROOT, parsed

DOCUMENTS = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "runs" / "README.md"]
PREFIXES = (
    "screen",
    "compile",
    "audit",
    "numeric",
    "fullmodel",
    "perf",
    "ingest",
    "promote",
    "rollback",
    "loop",
    "kit",
)
CODE = re.compile(rf"(?:{'|'.join(PREFIXES)})\.[a-z][a-z_-]*")
NOT_CODES = {"screen.py", "numeric.py", "kit.json", "kit.key", "kit.pyz"}  # file names
# functions that put a gate's prefix before the code they are given
PREFIXED = {
    ("gates/perf.py", "made"): "perf",
    ("gates/ingest.py", "Refusal"): "ingest",
    ("pipeline/loop/building.py", "skipped"): "compile",
}
COMMANDS = (
    *("ops", "propose", "resume", "replay", "runs", "gate", "promote", "rollback"),
    *(
        "verify",
        "status",
        "report",
        "catalogue",
        "evidence",
        "export",
        "kit",
        "ingest",
        "lessons",
        "config",
        "mcp",
        "agents",
        "doctor",
        "gpu",
        "bench-agent",
        "bench-layer",
        "tune",
        "watch",
        "api",
    ),
)


def codes() -> Iterator[str]:
    """Every code that the source can give, as far as its text shows."""
    for _, path, tree in parsed():
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and CODE.fullmatch(str(node.value)):
                yield str(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                prefix = PREFIXED.get((where, node.func.id))
                words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                if prefix and words and words[0].replace("_", "").isalpha():
                    yield f"{prefix}.{words[0]}"


def test_every_code_is_documented() -> None:
    from kgen.gates.numeric import ORDER
    from kgen.loop.work import OUT_OF_BUDGET, OUT_OF_TIME

    whys = ("no_gpu", "other_gpu", "few_gpus", "kit", "no_points", OUT_OF_TIME, OUT_OF_BUDGET)
    skips = {f"{gate}.{why}" for gate in ("numeric", "fullmodel", "perf") for why in whys} | {f"compile.{OUT_OF_TIME}"}
    known = {*codes(), *skips, *(f"numeric.{word}" for word in ORDER)} - NOT_CODES
    said = set(CODE.findall((ROOT / "docs" / "gates.md").read_text())) - NOT_CODES
    assert len(known) > 60
    assert known - said == set(), "codes that docs/gates.md does not list"
    families = ("compile.dsl", "compile.crash")  # completed at run time
    assert {c for c in said - known if not c.startswith(families)} == set(), "listed, never given"


SCRIPT = """
import io, json, contextlib
from kgen.cli import app, boundary
said = {}
for command in json.loads(input()):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert boundary.run(app.build(), [*([command] if command else []), "--help"]) == 0
    said[command] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """What --help says, by command; "" is kgen itself."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT],
        input=json.dumps(["", *COMMANDS]),
        env={"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-800:]
    said: dict[str, str] = json.loads(done.stdout)
    return said


def test_the_help_lists_all_commands(helps: dict[str, str]) -> None:
    assert [c for c in COMMANDS if not re.search(rf"^\W*{c}\b", helps[""], re.MULTILINE)] == []


def documents() -> str:
    return "\n".join(path.read_text() for path in DOCUMENTS if path.exists())


def quoted() -> str:
    """Lines of shell blocks, and what stands in backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", documents(), re.MULTILINE | re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", documents())])


@pytest.mark.parametrize("command", COMMANDS)
def test_options_in_the_documents_exist(command: str, helps: dict[str, str]) -> None:
    lines = re.findall(rf"^kgen {command}\b([^#\n]*)", quoted(), re.MULTILINE)
    named = {option for line in lines for option in re.findall(r"(?<!\S)--?[a-z-]+", line)}
    assert {o for o in named if not re.search(rf"(?<![\w-]){re.escape(o)}\b", helps[command])} == set()


def test_commands_in_the_documents_exist() -> None:
    named = set(re.findall(r"^kgen ([a-z-]+)", quoted(), re.MULTILINE))
    assert named and named <= set(COMMANDS)


def test_every_variable_that_is_read_is_documented() -> None:
    nodes = (node for _, _, tree in parsed() for node in ast.walk(tree))
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    read = {text for text in texts if re.fullmatch(r"(KGEN|OPENAI)_[A-Z_]+", text)}
    assert len(read) > 10
    assert read == set(re.findall(r"(?:KGEN|OPENAI)_[A-Z_]+", (ROOT / "docs" / "cli.md").read_text()))


def test_make_targets_in_the_documents_exist() -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)", quoted(), re.MULTILINE))
    assert {"propose", "test"} <= named <= rules


def test_the_two_commands_come_first() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.strip()]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["```sh", "make propose OP=moe_shared", "make test", "```"]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.exists()], ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    assert [t for t in targets if "://" not in t and not (path.parent / t).exists()] == []
