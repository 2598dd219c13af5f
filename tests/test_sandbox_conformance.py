"""The conformance list run for real: what a level promises holds here, and what doctor makes of it.

At the level that builds use every line is tried in both fences; at the others those that need no waiting, and all of
them under `make deep`. tests/test_sandbox_weakened.py shows that each probe notices when its defence is off.
"""

import json
import re
from collections.abc import Iterator

import pytest
from support.checkout import ROOT

from kgen.cli import app, boundary
from kgen.gates.builder import conformance
from kgen.gates.builder.conformance import Report, Result, State
from kgen.gates.sandbox import LEVELS, NONE, Box, NoSandboxError, available, choose, levels, lines, probes
from kgen.gates.sandbox.levels import Level
from kgen.gates.sandbox.lines import FENCES, GAPS, JOB, LEFT_SECONDS, LINES, TOOL, gap

WHY = {name: why for name, _, why in available()}
PAGE = ROOT / "docs" / "sandbox.md"
MARKS = re.compile(r"(?s)(<!-- lines: begin -->\n)(.*)(<!-- lines: end -->)")


def doctor(*arguments: str) -> int:
    return boundary.run(app.build(), ["doctor", "--sandbox", *arguments])


def test_every_line_has_a_probe_and_every_gap_a_line() -> None:
    names = [line.name for line in LINES]
    assert len(names) == len(set(names)) >= 30
    assert all(callable(probes.find(name)) for name in names)
    assert set(GAPS) == set(LEVELS)
    assert all(line in names and set(fences) <= set(FENCES) for of in GAPS.values() for line, (fences, _) in of.items())
    with pytest.raises(LookupError, match="no probe"):
        probes.find("nothing")


def test_a_job_has_no_gaps_at_any_level() -> None:
    assert not [(level, line.name) for level in LEVELS for line in LINES if gap(level, True, line.name, JOB)]


@pytest.fixture(scope="module")
def said() -> str:
    try:
        return choose().name
    except NoSandboxError as error:
        pytest.skip(str(error))


def test_the_level_that_builds_use_holds_what_it_promises(said: str, capfd: pytest.CaptureFixture[str]) -> None:
    status = doctor("--json", "--level", said)
    out, err = capfd.readouterr()
    report = json.loads(out)["report"]
    tried = {(r["line"], r["fence"]): r for r in report["results"]}
    assert set(tried) == {(line.name, fence) for line in LINES for fence in line.fences}
    assert not [r for r in tried.values() if not r["gap"] and r["state"] != "holds"], err
    assert status == 0 and report["active"] == said
    for line in LINES:
        if line.gone:
            after = re.fullmatch(r"gone after (\d+\.\d\d) s", tried[line.name, JOB]["found"])
            assert after and float(after.group(1)) < LEFT_SECONDS


QUICK = [line for line in LINES if not line.ends and not line.gone]
WORKING = [name for name in LEVELS if not WHY[name]]
OTHERS = [
    *(pytest.param(name, QUICK, id=f"{name}-quick") for name in WORKING[1:]),
    *(pytest.param(name, list(LINES), id=f"{name}-all", marks=pytest.mark.deep) for name in WORKING[1:]),
]


@pytest.mark.parametrize("level, some", OTHERS)
def test_every_level_holds_what_it_promises(level: str, some: list[lines.Line]) -> None:
    report = conformance.check([level], some)
    assert report.ok, report.failed


def _result(level: str, state: State, why: str = "") -> Result:
    return Result(level, JOB, "disk", state, "", why, 0.0)


@pytest.mark.parametrize(
    "results, ok",
    [
        ([_result("bwrap", State.HOLDS)], True),
        ([_result("bwrap", State.BROKEN)], False),
        ([_result("bwrap", State.UNTRIED)], False),  # what could not be tried does not hold
        ([_result("bwrap", State.BROKEN, "not promised")], True),
        ([_result("bwrap", State.HOLDS), _result("landlock", State.BROKEN)], True),
        ([], False),
    ],
)
def test_a_report_is_good_only_if_the_level_in_use_kept_all_promises(results: list[Result], ok: bool) -> None:
    assert Report("bwrap", ("bwrap",), {}, tuple(results), 0.0).ok == ok


def test_a_report_without_a_level_is_not_good() -> None:
    assert not Report("", (), dict.fromkeys(LEVELS, "no"), (), 0.0).ok


@pytest.mark.parametrize(
    "arguments", [["--line", "nothing"], ["--level", "docker"]], ids=["an unknown line", "an unknown level"]
)
def test_doctor_names_the_lines_and_levels_that_there_are(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert doctor(*arguments) == boundary.USAGE
    assert "known: " in capfd.readouterr().err


def test_the_page_lists_the_lines_as_they_are() -> None:
    found = MARKS.search(PAGE.read_text(encoding="utf-8"))
    assert found and found.group(2) == lines.table(), "print(kgen.gates.sandbox.lines.table())"


@pytest.fixture
def nothing_works(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without any of the programs, whose kernel has no Landlock."""

    def missing(program: str) -> Level:
        def wrap(box: Box, argv: list[str]) -> list[str]:
            raise FileNotFoundError(f"{program} {levels.MISSING}")

        return Level(program, wrap)

    made = {"bwrap": missing("bwrap"), "unshare": missing("setpriv"), "landlock": missing("Landlock")}
    monkeypatch.setattr(levels, "LEVELS", made)
    levels.probe.cache_clear()
    yield
    levels.probe.cache_clear()


@pytest.mark.usefixtures("nothing_works")
@pytest.mark.parametrize("command", [["doctor", "--sandbox"], ["doctor"], ["propose", "--op", "moe_shared"]])
def test_without_a_level_a_command_refuses_and_names_the_packages(
    command: list[str], capfd: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    places = ["--runs", f"{tmp_path}/runs", "--cache", f"{tmp_path}/cache"]
    assert boundary.run(app.build(), command + (places if command[0] == "propose" else [])) == boundary.ENVIRONMENT
    complaint = capfd.readouterr().err.strip().splitlines()[-1]
    assert complaint.startswith("kgen: ") and "apt-get install bubblewrap util-linux" in complaint
    assert "lsm=landlock" in complaint


@pytest.mark.usefixtures("nothing_works")
def test_only_an_explicit_request_goes_without_a_sandbox() -> None:
    with pytest.raises(NoSandboxError, match="apt-get install bubblewrap") as caught:
        choose()
    assert "\n" not in str(caught.value)
    assert choose(unsafe_no_sandbox=True) is NONE
    assert NONE.label == "none"


@pytest.mark.parametrize(
    "why, words",
    [
        ({"bwrap": "bwrap is not installed", "unshare": "", "landlock": ""}, "apt-get install bubblewrap)"),
        ({"unshare": "unshare is not installed"}, "apt-get install util-linux)"),
        ({"bwrap": "bwrap: No permissions to create new namespace"}, "kernel.unprivileged_userns_clone=1"),
        ({"landlock": "this kernel has no Landlock"}, "Linux 5.13 or newer"),
    ],
)
def test_advice_names_what_would_help(why: dict[str, str], words: str) -> None:
    assert words in levels.advice(why)
    assert "\n" not in levels.advice(why)


def test_processes_that_nobody_counts_are_not_promised() -> None:
    assert gap("landlock", False, "fork-bomb", TOOL) and gap("landlock", False, "threads", JOB)
    assert not gap("landlock", True, "fork-bomb", TOOL)
    assert not gap("landlock", False, "fork-bomb", JOB), "a job may start no process at all"
