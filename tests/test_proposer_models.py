"""Which model is asked for what, and that questions begin alike, so that a server's cache of prefixes can help."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import openai_server as srv
from support.requests import attempt, failing, passing, request

from kgen.config import load
from kgen.proposers import ProposalRequest
from kgen.proposers.base import Budget
from kgen.proposers.models import Models
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.render import packaged
from kgen.proposers.transcript import Transcript

FLAGS = (
    "models.default.model=strong",
    "models.default.reasoning_effort=high",
    "models.repair.model=small",
    "models.repair.api=responses",
    "models.repair.reasoning_effort=low",
    "models.repair.temperature=0.1",
    "models.optimise.temperature=0.9",
    "prices.strong.prompt=10",
    "prices.strong.completion=40",
    "prices.small.prompt=1",
    "prices.small.completion=4",
)


def proposer(server: srv.Server) -> OpenAIProposer:
    env = {"OPENAI_API_KEY": "k" * 12, "OPENAI_BASE_URL": server.url}
    return OpenAIProposer(models=Models.of(load(env, None, FLAGS), env))


OTHER = f"x = 1\n{srv.CODE}"
FAILED = (attempt(OTHER, failing("no such name")),)
GOOD = (attempt(OTHER, passing(), passing("unit-numeric")),)


@pytest.mark.parametrize(
    ("history", "path", "asked", "role", "usd"),
    [
        ((), "/v1/chat/completions", {"model": "strong", "reasoning_effort": "high"}, "design", 0.018),
        (
            FAILED,
            "/v1/responses",
            {"model": "small", "reasoning": {"effort": "low"}, "temperature": 0.1},
            "repair",
            0.0018,
        ),
        (
            GOOD,
            "/v1/chat/completions",
            {"model": "strong", "reasoning_effort": "high", "temperature": 0.9},
            "optimise",
            0.018,
        ),
    ],
    ids=["design", "repair", "optimise"],
)
def test_the_phase_chooses_model_protocol_effort_temperature_and_price(
    history: Any, path: str, asked: dict[str, Any], role: str, usd: float, tmp_path: Path
) -> None:
    good = srv.responded() if role == "repair" else srv.ok()
    with srv.serving(good) as server:
        got = proposer(server).propose(request(tmp_path, history=history, budget=Budget(cost_usd=5.0)))
        (seen,) = server.seen
    assert seen.path == path
    watched = ("model", "reasoning_effort", "reasoning", "temperature")
    assert {name: seen.body[name] for name in watched if name in seen.body} == asked
    entry = Transcript(tmp_path).read(1)
    assert entry is not None and entry[0].role == role and entry[0].model == asked["model"]
    assert got.usage.cost_usd == pytest.approx(usd)  # 1000 tokens in, 200 out


def common(a: str, b: str) -> int:
    """Characters that two texts have in common from the first on."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def sent(tmp_path: Path, *requests: ProposalRequest) -> list[dict[str, Any]]:
    codes = iter(range(100))
    with srv.serving(lambda h: srv.ok(srv.answer(f"y = {next(codes)}\n{srv.CODE}"))(h)) as server:
        env = {"OPENAI_API_KEY": "k" * 12, "OPENAI_BASE_URL": server.url}
        asked = OpenAIProposer(models=Models.of(load(env), env))
        for each in requests:
            asked.propose(each)
        return [seen.body for seen in server.seen]


def test_consecutive_questions_of_a_run_share_the_system_message_and_the_op_up_to_what_differs(tmp_path: Path) -> None:
    first, second = sent(tmp_path, request(tmp_path, count=2))
    system, user = first["messages"]
    assert second["messages"][0] == system and len(system["content"]) > 10_000
    again = second["messages"][1]["content"]
    # what follows from the op alone comes first: the texts part where the number of the candidate stands
    parted = common(user["content"], again)
    assert parted > 0.5 * len(user["content"])
    assert "1 of 2" in user["content"][parted - 80 : parted + 80]
    assert first["model"] == second["model"] and list(first)[:2] == list(second)[:2] == ["model", "messages"]


def test_a_repair_shares_the_system_message_with_the_design_before_it(tmp_path: Path) -> None:
    designed, repaired = sent(tmp_path, request(tmp_path), request(tmp_path, history=FAILED))
    assert designed["messages"][0] == repaired["messages"][0]
    whole = [json.dumps(body["messages"], ensure_ascii=False) for body in (designed, repaired)]
    assert common(*whole) > len(json.dumps(designed["messages"][0], ensure_ascii=False))


def test_another_op_keeps_the_guide_and_has_technique_pages_of_its_own(tmp_path: Path) -> None:
    one, two = (packaged().prompt(request(tmp_path, op=op)) for op in ("moe_shared", "attn_res"))
    guide = packaged().pages["guide.md"].strip()
    assert guide in one.system and guide in two.system
    assert common(one.system, two.system) > len(guide)
    assert one.user != two.user
