"""What an evaluation of several ops says of each: a pass, a pass but for blind mutants, or nothing."""

import pytest
from support.modeleval import judge, only, stand

from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.modeleval import share
from kgen.records import GateResult, Status

MUTANTS = {"a tile_scale": {"refused": True}, "a drop_last_k": {"refused": True}, "ab tile_scale": {"refused": False}}


def result(status: Status, code: str, **evidence: object) -> GateResult:
    found = {"mutants": MUTANTS, "models": {"nano": {}}, **evidence}
    return GateResult("full-model-eval", status, code, "said", found, 9.0, GATE_CONTRACT)


def test_a_pass_is_one_of_each_op_with_its_own_mutants() -> None:
    given = result(Status.PASS, "fullmodel.pass")
    assert share.of(given, "a").evidence == {"mutants": dict(list(MUTANTS.items())[:2]), "models": {"nano": {}}}
    assert share.of(given, "ab").evidence["mutants"] == {"ab tile_scale": {"refused": False}}
    assert (share.of(given, "a").message, share.of(given, "a").status) == ("said", Status.PASS)


def test_only_the_ops_whose_mutants_were_let_through_stay_without_a_verdict() -> None:
    blind = {"insensitive": {"ab": "mutant ab tile_scale passed"}, "otherwise": "9 exercises"}
    given = result(Status.ERROR, "fullmodel.insensitive", **blind)
    own = share.of(given, "a")
    assert (own.status, own.code, own.message) == (Status.PASS, "fullmodel.pass", "9 exercises")
    assert set(own.evidence) == {"mutants", "models"}
    assert share.of(given, "ab") is given


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.FAIL, "fullmodel.logits"),
        (Status.FAIL, "fullmodel.attestation"),
        (Status.ERROR, "fullmodel.incomplete"),
        (Status.ERROR, "fullmodel.insensitive"),  # no mutant was built, or one crashed: nothing else was judged
        (Status.SKIP, "fullmodel.no_gpu"),
    ],
)
def test_anything_else_is_no_pass_of_any_op(status: Status, code: str) -> None:
    given = result(status, code)
    assert share.of(given, "a") is given


def test_only_that_verdict_is_shared() -> None:
    given = result(Status.FAIL, "fullmodel.logits", insensitive={}, otherwise="9 exercises")
    assert share.of(given, "a") is given


def test_the_gate_says_for_which_ops_its_mutants_were_let_through_and_that_all_else_held() -> None:
    """With a mutant that is no mutant: stock in the place of one."""
    got = judge("reordered", mutants=[stand("", 4, "tile_scale"), stand("drop_last_k", 4, "drop_last_k")], sizes=only())
    assert got.code == "fullmodel.insensitive"
    assert set(got.evidence["insensitive"]) == {"moe_shared"}
    assert got.evidence["otherwise"].startswith("3 exercises")
    assert share.of(got, "moe_shared") is got


def test_a_mutant_that_is_missing_is_said_before_anything_is_judged() -> None:
    got = judge("reordered", mutants=[stand("tile_scale", 4, "tile_scale")], sizes=only())
    assert got.code == "fullmodel.insensitive" and "insensitive" not in got.evidence
    assert share.of(got, "another") is got
