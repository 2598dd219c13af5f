"""Declared tunables: what may be declared, that only constants change, and a whole `kgen tune`.

Not covered: how points are chosen (test_search_studies).
"""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loops import called, kgen, the_run
from support.requests import request

from kgen.gates.screen import screen
from kgen.proposers.base import ProposerExhausted, SetupError
from kgen.proposers.studies import RANDOM, TPE
from kgen.proposers.tunables import Declared, read, rewritten
from kgen.proposers.tune import PARENT, TuneProposer
from kgen.records import Verdict

EXAMPLE = (Path(__file__).parents[1] / "docs/examples/moe_shared.py").read_text(encoding="utf-8")
LINE = "WARPS = 4  # a block; each warp owns one output row\n"
TUNED = EXAMPLE.replace(LINE, 'TUNABLES = {"WARPS": (1, 2, 4, 8)}\n' + LINE)
SMALL = """'''größer'''
A, B = 128, "x"  # ä: A stays A in comments and "A, B = 128"
C = -2
TUNABLES = {"A": (128, 256), "B": ("x", 'y"\\\\z'), "C": [-2, 4], "D": (True, False)}
D = True


def f(n):
    return A if D else n * C, "A, B = 128"
"""


def test_only_the_constants_change_and_every_other_byte_stays() -> None:
    made = rewritten(SMALL, read(SMALL), {"A": 256, "B": 'y"\\z', "C": 4, "D": False})
    changed = [(a, b) for a, b in zip(SMALL.split("\n"), made.split("\n"), strict=True) if a != b]
    note = '  # ä: A stays A in comments and "A, B = 128"'
    line = 'A, B = 256, "y\\"\\\\z"'
    assert changed == [('A, B = 128, "x"' + note, line + note), ("C = -2", "C = 4"), ("D = True", "D = False")]


def test_the_point_that_a_source_has_gives_the_source_itself() -> None:
    tunables = read(SMALL)
    assert tunables.point == {"A": 128, "B": "x", "C": -2, "D": True}
    assert rewritten(SMALL, tunables, tunables.point) == SMALL


@given(st.integers(0, 2**32), st.text(max_size=30).filter(lambda t: "\r" not in t and t.isprintable()))
@settings(max_examples=40, deadline=None)
def test_a_rewritten_source_runs_to_the_constants_that_were_asked_for(seed: int, note: str) -> None:
    source = SMALL.replace("# ä:", f"# {note}")
    tunables = read(source)
    point = tunables.space.draw(random.Random(seed))
    names: dict[str, object] = {}
    exec(rewritten(source, tunables, point), names)
    assert {name: names[name] for name in point} == point
    assert read(rewritten(source, tunables, point)).space == tunables.space


WRONG = {
    "A = 1": "binds TUNABLES exactly once",
    'A = 1\nTUNABLES = {"A": (1, 2)}\nTUNABLES = {"A": (1, 2)}': "binds TUNABLES exactly once",
    'A = 1\ndef f():\n    TUNABLES = {"A": (1, 2)}': "binds TUNABLES exactly once",
    "A = 1\nTUNABLES = dict(A=(1, 2))": "must be a literal dict",
    'A = 1\nTUNABLES = {**{"A": (1, 2)}}': "a plain string",
    'A = 1\nTUNABLES = {"A": range(2)}': "must be a literal tuple or list",
    'A = 1\nTUNABLES = {"A": (1, f())}': "a literal number, bool or short text only",
    'A = 1\nTUNABLES = {"A": (1, 1e999)}': "a literal number, bool or short text only",
    'A = 1\nTUNABLES = {"A": (1,)}': "needs 2 to 64 values, it has 1",
    'A = 1\nTUNABLES = {"A": (1, 2.0)}': "must all be of one type",
    'A = 1\nTUNABLES = {"A": (1, True)}': "must all be of one type",
    'A = 1\nTUNABLES = {"A": (1, 1)}': "stands there twice",
    'A = 3\nTUNABLES = {"A": (1, 2)}': "A is 3, which is none of the values",
    'A = 1\nTUNABLES = {"A": (1, 2)}\nA = 2': "bound exactly once in the whole file, it is bound 2 times",
    'TUNABLES = {"A": (1, 2)}': "it is bound 0 times",
    'A = 1\nTUNABLES = {"A": (1, 2)}\ndef f(A): pass': "it is bound 2 times",
    'A: int = 1\nTUNABLES = {"A": (1, 2)}': "a plain assignment of a literal at the top level",
    'if True:\n    A = 1\nTUNABLES = {"A": (1, 2)}': "a plain assignment of a literal at the top level",
    'A = B = 1\nTUNABLES = {"A": (1, 2)}': "a plain assignment of a literal at the top level",
    'A = 1 + 0\nTUNABLES = {"A": (1, 2)}': "a literal number, bool or short text only",
    'A = "x\\ny"\nTUNABLES = {"A": ("x\\ny", "z")}': "a literal number, bool or short text only",
    'TUNABLES = {"__name__": ("a", "b")}': "cannot be tuned",
    "TUNABLES = {}": "must name 1 to 16 constants, it names 0",
    'A = 1\r\nTUNABLES = {"A": (1, 2)}': "lines must end in LF alone",
    "A = (": "no Python source",
}


@pytest.mark.parametrize("source", list(WRONG))
def test_a_declaration_that_cannot_be_used_is_refused_in_one_line(source: str) -> None:
    with pytest.raises(Declared) as caught:
        read(source + "\n")
    assert WRONG[source] in str(caught.value) and "\n" not in str(caught.value)


def test_a_point_outside_the_declaration_is_refused() -> None:
    with pytest.raises(Declared, match="A cannot be 64"):
        rewritten(SMALL, read(SMALL), {"A": 64, "B": "x", "C": 4, "D": True})


def test_the_screen_admits_a_declaration() -> None:
    assert screen(TUNED) == screen(EXAMPLE) == []


@pytest.mark.parametrize("method", [TPE, RANDOM])
def test_the_candidate_itself_comes_first_and_every_variant_names_it_as_its_parent(method: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TUNED, encoding="utf-8")
    first, *others = TuneProposer(path, method).propose(request(tmp_path, count=10)).candidates
    assert first.source == TUNED and first.origin.detail["parents"] == []
    assert {c.source for c in others} == {TUNED.replace("WARPS = 4 ", f"WARPS = {n} ") for n in (1, 2, 8)}
    assert all(c.origin.proposer == "tune" and c.origin.detail["parents"] == [first.id] for c in others)
    history = tuple((c, Verdict(c.id, ())) for c in (first, *others))
    with pytest.raises(ProposerExhausted, match="every combination"):
        TuneProposer(path, method).propose(request(tmp_path, history=history))


def test_a_file_without_a_declaration_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE, encoding="utf-8")
    with pytest.raises(SetupError, match="binds TUNABLES exactly once"):
        TuneProposer(path)
    assert called(["tune", str(path), "--op", "moe_shared", "--runs", str(tmp_path / "runs")]) == 3
    said = capsys.readouterr().err.strip()
    assert "binds TUNABLES exactly once" in said and "\n" not in said
    assert called(["tune", str(tmp_path / "none.py"), "--op", "moe_shared", "--runs", str(tmp_path / "runs")]) == 2
    assert not (tmp_path / "runs").exists()


def test_a_tuned_candidate_goes_through_the_loop_and_its_run_has_all_that_a_resume_needs(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TUNED, encoding="utf-8")
    point = ("--op", "moe_shared", "--arch", "sm_90a", "--dims", "nano", "--tokens", "1", "--no-interpret")
    done = kgen(tmp_path, "tune", str(path), *point, "--trials", "2", "--max-gpu-seconds", "7")
    assert done.returncode == 0, done.stderr
    assert "estimate: at most 2 candidates; time unknown" in done.stderr
    run = the_run(tmp_path)
    assert (run.path / PARENT).read_text(encoding="utf-8") == TUNED
    stored = json.loads((run.path / "run.json").read_text())["settings"]
    assert (stored["proposer"], stored["search"], stored["candidates"]) == ("tune", "tpe", 2)
    assert stored["max_gpu_seconds"] == 7
    assert [f.candidate().source == TUNED for f in run.folders()] == [True, False]
    path.unlink()
    again = kgen(tmp_path, "resume", run.id)
    assert again.returncode == 0, again.stderr
