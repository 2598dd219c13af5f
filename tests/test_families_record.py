"""The record of benchmarks/families.py: of the known points as they are now, and all of them right."""

import json
from pathlib import Path
from typing import Any

import pytest

from kgen.proposers.families import FAMILIES, render
from kgen.records import Candidate, Origin

RECORD = Path(__file__).parents[1] / "benchmarks/families.json"
OPS = (
    *("attn_res", "kda_core", "lm_head_argmax", "mla_dcp_merge", "mla_decode", "mla_kv_append", "mla_q", "moe_router"),
    *("moe_tail", "oproj_allreduce_residual"),
)


def lines(op: str) -> list[dict[str, Any]]:
    return [x for x in json.loads(RECORD.read_text())["lines"] if x["point"].startswith(f"{op}/")]


@pytest.mark.parametrize("op", [*OPS, "dense_mlp"])  # of dense_mlp the point whose loops are rolled up
def test_what_is_recorded_is_of_the_known_points_and_passed(op: str) -> None:
    known = {Candidate(op, render(v), Origin("search")).id[:12] for v in FAMILIES[op].known}
    found = lines(op)
    assert {x["candidate"] for x in found} <= known, "benchmarks/families.py --op OP --record benchmarks/families.json"
    assert {x["code"] for x in found} == {"numeric.ptx_pass"}
    assert {stack for x in found for stack in x["stack_bytes"]} == {0}


@pytest.mark.parametrize("op", OPS)
def test_the_first_known_point_is_recorded_at_several_points(op: str) -> None:
    first = Candidate(op, render(FAMILIES[op].known[0]), Origin("search")).id[:12]
    assert len({x["point"] for x in lines(op) if x["candidate"] == first}) >= 2
