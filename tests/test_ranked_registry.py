"""Ops of several ranks are ops like the others: found by name, listed, and told to whoever writes their kernels.

What the notes say of arguments is compared with what the builder really calls a host function with.
"""

import json
import re
from pathlib import Path

import pytest
from support.requests import request

from kgen.contract.ranks import AXIS, PAIR_SENTINEL, RankedOp
from kgen.gates.ranks.job import OPS
from kgen.gates.signature import arguments
from kgen.ops import RANKED, REGISTRY
from kgen.proposers import ranked_notes
from kgen.proposers.render import packaged
from kgen.records import SymmetricBuffer

BOX = SymmetricBuffer("NAME", "bf16", (2, 1, 256), 2, PAIR_SENTINEL)


def prompt(folder: Path, op: str) -> str:
    return packaged().prompt(request(folder, op)).user


def test_they_are_found_by_name_and_a_slip_names_them() -> None:
    assert set(RANKED) == set(OPS) == set(REGISTRY.ranked) and not set(RANKED) & set(REGISTRY.ops)
    for name, op in RANKED.items():
        assert REGISTRY.get(name) is op and isinstance(op, RankedOp) and AXIS in op.axes
    with pytest.raises(ValueError, match="ranked_allreduce_residual"):
        REGISTRY.get("ranked_allreduce_residuall")


@pytest.mark.parametrize("name", sorted(RANKED))
def test_the_order_of_arguments_that_is_told_is_the_order_of_the_call(name: str) -> None:
    op = RANKED[name]
    problem = op.problem("nano", 1, "sm_90a")
    called = [a.name for a in arguments(op, problem, (("i32", (4,)),), (BOX,))]
    told = re.findall(r"`(\w+)`", ranked_notes.order(op, problem))
    assert called[-1] == "workspace0" and told == [*called[:-1], "stream"]


@pytest.mark.parametrize("name", sorted(RANKED))
def test_a_prompt_says_what_an_exchange_needs_and_the_guide_does_not(name: str, tmp_path: Path) -> None:
    told, op = prompt(tmp_path, name), RANKED[name]
    assert all(line in told for line in ranked_notes.lines(op, op.problem("nano", 64, "sm_103a")))
    for word in ("symmetric(dims, tokens, arch)", "NAME_peers", "0x80000000", "n % parities", "fence_acq_rel_sys"):
        assert word in told
    assert "`dims` also holds `ranks`" not in told  # an axis: a string, said once


def test_prompts_of_one_rank_say_nothing_of_it(tmp_path: Path) -> None:
    assert ranked_notes.lines(REGISTRY.get("moe_shared"), REGISTRY.get("moe_shared").problem("nano", 1, "sm_90a")) == ()
    assert "symmetric(" not in prompt(tmp_path, "oproj_allreduce_residual")


def test_the_list_of_ops_and_the_contract_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    from kgen.cli import ops

    ops.listing(type("Context", (), {"invoked_subcommand": None})(), json=True, gpu="h200")  # type: ignore[arg-type]
    listed = {op["name"]: op for op in json.loads(capsys.readouterr().out)["ops"]}
    assert set(RANKED) < set(listed) and listed["ranked_allreduce_residual"]["gpus"]["k3-tp8"] == 2
    ops.show("ranked_allreduce_residual", gpu="h200", json=True)
    assert any("NAME_peers" in line for line in json.loads(capsys.readouterr().out)["several_ranks"])
    ops.show("moe_shared", gpu="h200", json=True)
    assert "several_ranks" not in json.loads(capsys.readouterr().out)
