"""Technique pages: chosen by what an op is, within a budget, the same each time."""

from pathlib import Path

import pytest
from support.requests import request

from kgen.ops import REGISTRY
from kgen.proposers.render import packaged
from kgen.proposers.techniques import BUDGET, FOLDER, chosen

PAGES = packaged().pages


def test_an_op_with_mxfp4_weights_gets_the_page_on_decoding_them_first() -> None:
    assert chosen(REGISTRY.ops["moe_experts"], PAGES)[0] == f"{FOLDER}mxfp4.md"
    assert f"{FOLDER}mxfp4.md" not in chosen(REGISTRY.ops["attn_res"], PAGES)[:1]


@pytest.mark.parametrize("op", sorted(REGISTRY.ops))
def test_the_pages_of_an_op_are_within_the_budget_and_not_all_of_them(op: str) -> None:
    picked = chosen(REGISTRY.ops[op], PAGES)
    assert sum(len(PAGES[name]) for name in picked) <= BUDGET
    assert len(picked) < sum(name.startswith(FOLDER) for name in PAGES)


def test_the_system_prompt_is_the_guide_then_the_pages_of_the_op(tmp_path: Path) -> None:
    asked = request(tmp_path, "moe_experts")
    system = packaged().prompt(asked).system
    page = PAGES[f"{FOLDER}mxfp4.md"].strip()
    assert system.index(PAGES["guide.md"].strip()) < system.index(page)
