"""The workflow for kernels does what it says: its own scripts run here on a clean clone, as a runner would run them.

A runner's part is played by `run_step`: inputs put in place of `${{ ... }}`, the environment of the step, bash. The
comments are kept by a server on this machine. Not covered: actions of others (checkout, artifacts), installing.
"""

import html
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.checkout import ROOT

ACTION = ROOT / ".github" / "actions" / "kernels"
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # as GitHub starts `shell: bash`


def document(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def step(steps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (s for s in steps if s.get("name") == name)
    return found


def run_step(
    of: Mapping[str, Any], cwd: Path, context: Mapping[str, str], **more: str
) -> "subprocess.CompletedProcess[str]":
    def value(text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda m: context[m.group(1)], str(text))

    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(cwd.parent), "PATH": tools, "KGEN_CACHE": str(cwd.parent / "cache"), "OMP_NUM_THREADS": "1"}
    env = {**home, **{k: value(v) for k, v in of.get("env", {}).items()}, **more}
    return subprocess.run(
        [*SHELL, value(of["run"])], cwd=cwd, env=env, capture_output=True, text=True, timeout=280, check=False
    )


def git(cwd: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *who, *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of what is committed here."""
    folder = tmp_path_factory.mktemp("clone") / "repo"
    subprocess.run(["git", "clone", "-q", "--no-tags", "--depth=1", f"file://{ROOT}", str(folder)], check=True)
    return folder


def checked(clone: Path, **inputs: str) -> tuple["subprocess.CompletedProcess[str]", str]:
    """The action's step on the newest commit of a clone, and the report that it wrote."""
    action = document(ACTION / "action.yml")
    given = {k: str(v.get("default", "")) for k, v in action["inputs"].items()} | inputs
    context = {
        **{f"inputs.{k}": v for k, v in given.items()},
        "github.action_path": str(clone / ACTION.relative_to(ROOT)),
    }
    summary = clone.parent / "summary.md"
    summary.write_text("")
    done = run_step(
        step(action["runs"]["steps"], "Gates and evidence"), clone, context, GITHUB_STEP_SUMMARY=str(summary)
    )
    said = summary.read_text()
    assert (clone / "report.md").read_text() == said if said else not (clone / "report.md").exists()
    return done, said


def test_a_kernel_that_is_refused_and_has_no_evidence_fails_the_check(origin: Path) -> None:
    base = git(origin, "rev-parse", "HEAD")
    path = origin / "generated_kernels" / "moe_shared" / "0123456789ab.py"
    path.write_text("def build(dims, tokens, arch)\n    return `None`  # <b>@all</b>\n")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "a kernel")
    try:
        done, said = checked(origin, base=base)
    finally:
        git(origin, "reset", "-q", "--hard", base)
        (origin / "report.md").unlink(missing_ok=True)
    assert done.returncode == 1, done.stderr
    assert said.startswith("<!-- kgen-kernels -->\n## Kernels: not well") and "1 changed" in said
    assert "moe&#95;shared/0123456789ab.py | compile | fail | compile.syntax |" in said
    assert "no promotion names it" in said and "unit-numeric" not in said


def test_a_commit_that_is_not_there_is_one_line_and_no_report(origin: Path) -> None:
    done, said = checked(origin, base="0" * 40)
    assert (done.returncode, said) == (2, "")
    assert done.stderr.startswith("check.py: git cannot compare with") and done.stderr.count("\n") == 1


@pytest.mark.deep
def test_the_promoted_kernels_pass_on_a_clean_clone(origin: Path) -> None:
    base = git(origin, "rev-parse", "HEAD")
    git(origin, "rm", "-rq", "generated_kernels")
    git(origin, "commit", "-qm", "without")
    without = git(origin, "rev-parse", "HEAD")
    git(origin, "checkout", base, "--", "generated_kernels")
    git(origin, "commit", "-qm", "with")
    try:
        done, said = checked(origin, base=without)
    finally:
        git(origin, "reset", "-q", "--hard", base)
    assert done.returncode == 0, said + done.stderr
    assert "Kernels: all well" in said and "| unit-numeric | pass |" in said


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    """What is defined in check.py."""
    found: dict[str, Any] = {"__name__": "check"}
    exec(compile((ACTION / "check.py").read_text(), "check.py", "exec"), found)
    return found


@pytest.mark.parametrize(
    "text", ["a|b", "`x`", "<img src=x>", "@somebody", "#1", "[a](b)", "a_b*", "&lt;", "two\nlines", "\x1b[31m"]
)
def test_no_words_of_a_kernel_act_in_a_comment(text: str, check: dict[str, Any]) -> None:
    shown = check["cell"](text)
    assert not re.search(r"[|`<>@\[\]\n\x1b]|#(?!\d+;)", shown)
    assert html.unescape(shown) == re.sub(r"[\n\x1b]", " ", text)


def test_a_report_is_cut_within_what_a_comment_may_hold(check: dict[str, Any]) -> None:
    long = check["MARK"] + "\n" + "| row |\n" * 20_000
    shown = check["cut"](long)
    assert len(shown) < 65_536 and shown.startswith(check["MARK"]) and shown.endswith("is in the log of this job.\n")
    assert check["cut"]("short\n") == "short\n"


class Comments(BaseHTTPRequestHandler):
    """The comments of one pull request, and how they are asked for."""

    kept: list[dict[str, Any]]
    status = 200

    def _answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> str:
        return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

    def do_GET(self) -> None:
        page = int(self.path.rpartition("=")[2])
        assert self.path.startswith("/repos/o/r/issues/7/comments?") and self.headers["Authorization"] == "Bearer t0ken"
        self._answer(self.kept[(page - 1) * 100 : page * 100])

    def do_POST(self) -> None:
        assert self.path == "/repos/o/r/issues/7/comments"
        self.kept.append({"id": len(self.kept), "body": self._body(), "user": {"type": "Bot"}})
        self._answer({})

    def do_PATCH(self) -> None:
        number = int(self.path.removeprefix("/repos/o/r/issues/comments/"))
        self.kept[number]["body"] = self._body()
        self._answer({})

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server() -> Iterator[tuple[type[Comments], str]]:
    handler = type("Handler", (Comments,), {"kept": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield handler, f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def comment(
    where: str, folder: Path, text: str, mark: str = "<!-- kgen-kernels -->"
) -> "subprocess.CompletedProcess[str]":
    """The workflow's own step."""
    (folder / "repo" / "report").mkdir(parents=True, exist_ok=True)
    (folder / "repo" / "report" / "report.md").write_text(f"{mark}\n{text}\n")
    (folder / "repo" / ".github").exists() or (folder / "repo" / ".github").symlink_to(ROOT / ".github")
    job = document(ROOT / ".github" / "workflows" / "kernels.yml")["jobs"]["comment"]
    context = {"github.token": "t0ken", "github.event.pull_request.number": "7"}
    place = {"GITHUB_API_URL": where, "GITHUB_REPOSITORY": "o/r"}
    return run_step(step(job["steps"], "One comment, updated"), folder / "repo", context, **place)


def test_one_comment_is_made_and_then_updated(server: tuple[type[Comments], str], tmp_path: Path) -> None:
    handler, where = server
    quoted = {"body": "<!-- kgen-kernels -->\nquoted by a person", "user": {"type": "User"}}
    handler.kept += [{"id": n, "body": "x", "user": {"type": "User"}} for n in range(120)] + [{"id": 120, **quoted}]
    for text in ("first", "second"):
        done = comment(where, tmp_path, text)
        assert (done.returncode, done.stderr) == (0, "")
    assert [c["body"] for c in handler.kept[120:]] == [quoted["body"], "<!-- kgen-kernels -->\nsecond\n"]


def test_a_report_without_the_mark_touches_no_comment(server: tuple[type[Comments], str], tmp_path: Path) -> None:
    handler, where = server
    handler.kept.append({"id": 0, "body": "of something else", "user": {"type": "Bot"}})
    done = comment(where, tmp_path, "x", mark="")
    assert done.returncode == 1 and "does not begin with <!-- kgen-kernels -->" in done.stderr
    assert [c["body"] for c in handler.kept] == ["of something else"]


def test_a_refused_comment_is_one_line(server: tuple[type[Comments], str], tmp_path: Path) -> None:
    handler, where = server
    handler.status = 403
    done = comment(where, tmp_path, "x")
    assert (
        done.returncode == 1 and done.stderr.startswith("comment.py: HTTP Error 403") and done.stderr.count("\n") == 1
    )


def test_what_a_pull_request_brings_runs_without_a_right_to_write() -> None:
    jobs = document(ROOT / ".github" / "workflows" / "kernels.yml")
    assert jobs["permissions"] == {"contents": "read"} and "permissions" not in jobs["jobs"]["gates"]
    first = jobs["jobs"]["comment"]["steps"][0]
    assert (
        first["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    )  # the writing job runs the base's scripts
    assert "pull_request_target" not in (ROOT / ".github" / "workflows" / "kernels.yml").read_text()


def test_no_step_puts_foreign_words_into_a_script() -> None:
    for path in (*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob(".github/actions/*/action.yml")):
        for script in re.findall(r"run: (?:\|\n((?: {8,}.*\n)+)|(.*))", path.read_text()):
            assert "${{" not in "".join(script), path  # values go through the environment
