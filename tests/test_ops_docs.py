"""docs/ops.md is what the contracts say; `kgen ops` says the same to people and programs, and fits a terminal."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from support.committed import SET, headline, serving
from support.loops import called, environment
from support.sets import fill, make_case

from kgen.cli.sets import current
from kgen.contract.op import Op, Registry
from kgen.contract.rules import ByOp, Codes, Exact, MaxAbs, RelL2
from kgen.contract.tensors import Role
from kgen.gates.rates import MEASURED
from kgen.ops import REGISTRY
from kgen.report import op_facts
from kgen.report.op_champions import champions
from kgen.report.ops_page import markdown
from kgen.store import KernelSet

ROOT = Path(__file__).parents[1]
OPS = list(REGISTRY.ops.values())
H200 = op_facts.GPUS["h200"]
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_the_committed_page_is_what_the_contracts_say() -> None:
    assert (ROOT / "docs" / "ops.md").read_text() == markdown(REGISTRY), "kgen ops --markdown > docs/ops.md"


def test_the_command_writes_exactly_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["ops", "--markdown"]) == 0
    assert capsys.readouterr().out == markdown(REGISTRY)


@every_op
def test_the_page_has_all_of_a_contract(op: Op) -> None:
    page = markdown(Registry({op.name: op}))
    for word in (*(t.name for t in op.tensors), *(s.name for s in op.scalars), *(f.name for f in op.families)):
        assert f"`{word}`" in page
    assert all(f"`{name}`" in page for name in (*op.names(), *op.axes, *(f.name for f in op.scenarios)))
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert not [line for line in page.splitlines() if line != line.rstrip()]
    widths = {line.count(" | ") for line in rows}
    assert len(widths) <= 3, "three tables: overview, arguments, costs"


@every_op
def test_rules_of_its_own_are_said_in_words(op: Op) -> None:
    own = type(op).hard_rules is not Op.hard_rules
    assert bool(op_facts.hard_rules(op)) == own, "the docstring of hard_rules is what people read"
    written = {t.name for t in op.tensors if t.role in (Role.OUT, Role.STATE)}
    assert set(op_facts.judged(op)) == written
    assert own or not any(isinstance(op.rule(t), ByOp) for t in op.tensors)


@every_op
def test_notes_tell_what_a_caller_must_know(op: Op) -> None:
    for t in op.tensors:
        said = op_facts.notes(t)
        assert ("stride" in said) == t.pitched
        assert (f"hold {t.padding}" in said) == (t.padding is not None)
        assert ("only with" in said) == (t.only is not None)


@every_op
def test_what_is_said_of_hard_rules_makes_sense_away_from_the_source_file(op: Op) -> None:
    said = op_facts.hard_rules(op)
    assert "file" not in said and "docstring" not in said and "module" not in said


def test_rules_that_stand_with_the_formulas_are_pointed_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["ops", "show", "lm_head_argmax"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Hard rules, for each token row" in shown and "hard rules: those stated with the formulas above" in shown


class Strict(RelL2):
    """Twice as strict. And more."""


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (RelL2(2e-3), "relL2 0.002"),
        (RelL2(2e-4, drift=1e-3), "relL2 0.0002; 0.001 after several calls on one state"),
        (Strict(1e-5), "relL2 1e-05 (Twice as strict. And more)"),
        (Exact(), "bit for bit the rounded reference"),
        (Codes(), "99.5% of the codes equal, the others next to it; relL2 0.004 of the values"),
        (MaxAbs(0.25), "no element off by more than 0.25"),
        (ByOp(), "by the hard rules alone"),
    ],
)
def test_every_rule_has_words(rule: RelL2, words: str) -> None:
    assert op_facts.rule_words(rule) == words


def test_floor_times_are_bytes_over_the_plain_read_rate() -> None:
    op = REGISTRY.get("moe_shared")
    rows = {(r.dims, r.tokens): r for r in op_facts.costs(op, H200)}
    assert {t for _, t in rows} == {1, 8, 64} and {d for d, _ in rows} == set(op.dims)
    weights = 2 * 3 * 768 * 7168
    assert rows["k3-tp8", 1].floor_us == pytest.approx((weights + 2 * 2 * 7168) / 4.48e12 * 1e6)
    assert MEASURED["NVIDIA H200"] is H200
    fast = op_facts.costs(op, op_facts.GPUS["b300"])[0]
    assert rows["k3-tp8", 1].floor_us / fast.floor_us == pytest.approx(0.93 * 8 / 4.48)


@every_op
def test_ops_of_several_gpus_are_those_with_a_rank_dim(op: Op) -> None:
    several = {name: op_facts.gpus(op, name) for name in op.names()}
    assert (several[op.pack.served[0]] > 1) == any("ranks" in t.shape for t in op.tensors)
    if several[op.pack.served[0]] > 1:
        assert [several[name] for name in ("k3-tp8", "k3-tp16", "vllm-tp1", "nano")] == [8, 16, 1, 2]


def test_the_champion_of_the_committed_set_has_the_speed_ups_of_its_evidence() -> None:
    found = champions(KernelSet(SET), current())["moe_shared"]
    kernels = [(p.arch, p.seq, p.candidate) for p in serving("moe_shared")]
    assert [(c.arch, c.seq, c.candidate) for c in found] == kernels
    known = headline("moe_shared").values()
    assert sum(c.points for c in found) == len({p.problem for p in known})
    gains = sorted(min(p.baselines_us.values()) / p.candidate_us for p in known)
    ends = [c.gains for c in found if c.gains]
    assert min(low for low, _ in ends) == pytest.approx(gains[0], rel=0.02)
    assert max(high for _, high in ends) == pytest.approx(gains[-1], rel=0.02)


def test_the_list_names_the_champion_and_an_empty_set_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["ops"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " moe_shared " in line)
    assert line.split()[-1] == "-"
    fill(home / "set", make_case(ratios={1: 0.51, 8: 0.81}))
    assert called(["ops"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " moe_shared " in line)
    assert line.split()[-2:] == ["1.25-2.00x", "stale"]  # its op contract is made up
    assert called(["ops", "--json"]) == 0
    listed = {op["name"]: op for op in json.loads(capsys.readouterr().out)["ops"]}
    assert set(listed) == set(REGISTRY.every)
    assert listed["moe_shared"]["champions"][0]["gains"] == pytest.approx([1.25, 2.0])


def test_a_damaged_set_costs_the_champions_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(home / "set", make_case())
    (home / "set" / "manifest.json").write_text("{")
    assert called(["ops"]) == 0
    said = capsys.readouterr()
    assert "moe_shared" in said.out and said.err.count("\n") == 1 and "champions are not shown" in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ops", "show", "moe_shard"], "did you mean moe_shared"),
        (["ops", "show", "moe"], "moe_shared"),
        (["ops", "--gpu", "k80"], "h200, b300"),
        (["ops", "show", "moe_shared", "--gpu", "k80"], "h200, b300"),
        (["ops", "--set", "nowhere"], "no kernel set"),
    ],
)
def test_wrong_names_get_one_line(
    arguments: list[str], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and words in said.err


@every_op
def test_the_json_of_one_op_is_the_contract(op: Op, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["ops", "show", op.name, "--json", "--gpu", "b300"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["contract"] == op.contract_sha256() and said["gpu"] == "b300"
    assert [t["name"] for t in said["tensors"]] == [t.name for t in op.tensors]
    assert all((t["rule"] is not None) == (t["role"] in ("out", "state")) for t in said["tensors"])
    assert set(said["dims"]) == set(op.names()) >= {"vllm-tp1"}
    assert set(said["families"]) == {f.name for f in op.families}
    assert {(c["dims"], c["tokens"]) for c in said["costs"]} >= {(d, 64) for d in op.dims}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def in_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *arguments: str) -> list[str]:
    """What a terminal of this width shows, without its colours."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert called(arguments) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_fits_a_terminal(columns: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = in_a_terminal(monkeypatch, columns, "ops")
    assert not [line for line in lines if len(line) > columns]
    for name in REGISTRY.ops:
        assert any(line.split()[:1] == [name] for line in lines), f"{name} is broken over lines"
    assert len(lines) < 4 * len(REGISTRY.ops) + 20


def test_one_op_fits_a_narrow_terminal_but_for_its_formulas(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = in_a_terminal(monkeypatch, 80, "ops", "show", "attn_res")
    assert not [line for line in lines if len(line) > 80 and not line.startswith("    ")]
