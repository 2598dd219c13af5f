"""What a server records of its routing is what its routers chose; names in a profile lie around promoted launches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sets import WIN, fill, make_case
from support.vllm_standin import HIDDEN, KimiLinearForCausalLM, drawn

from kgen.ops import REGISTRY
from kgen.serve import Served, ranges
from kgen.serve.routing_trace import SCHEMA, TraceError, Writer, read
from kgen.serve.vllm.routing import record
from kgen.serve.vllm.settings import SettingsError, parse
from kgen.store import KernelSet


def run(model: Any, tokens: int) -> torch.Tensor:
    with torch.inference_mode():
        out: torch.Tensor = model(drawn((tokens, HIDDEN), 7).data * HIDDEN**0.5, torch.arange(tokens))
    return out


@pytest.fixture
def model() -> Any:
    return KimiLinearForCausalLM(vllm_config=None)


def spied(model: Any) -> dict[int, list[list[int]]]:
    """Layer -> the choices of its router, noted by another hand."""
    seen: dict[int, list[list[int]]] = {}
    for index, layer in enumerate(model.model.layers):
        if layer.is_moe_layer:
            router = layer.block_sparse_moe.experts.router
            stock, kept = router._compute_routing, seen.setdefault(index, [])

            def routing(*args: Any, stock: Any = stock, kept: list[list[int]] = kept, **named: Any) -> Any:
                chosen = stock(*args, **named)
                kept.extend(chosen[1].tolist())
                return chosen

            router._compute_routing = routing
    return seen


def test_the_record_is_what_every_router_chose_and_changes_no_number(model: Any, tmp_path: Path) -> None:
    wanted, seen = run(KimiLinearForCausalLM(vllm_config=None), 5), spied(model)
    record(model, tmp_path / "t.jsonl", lambda: False)
    assert torch.equal(run(model, 5), wanted)
    run(model, 2)
    trace = read(tmp_path / "t.jsonl")
    assert len(trace.layers) == len(seen) > 1 and trace.experts == 16 and trace.top_k == 4
    assert {layer: [list(row) for row in trace.tokens(layer)] for layer in trace.layers} == seen
    assert {len(call.ids) for call in trace.calls} == {5, 2}


def test_nothing_is_recorded_inside_of_a_capture(model: Any, tmp_path: Path) -> None:
    captured = [True]
    record(model, tmp_path / "t.jsonl", lambda: captured[0])
    run(model, 3)
    assert not (tmp_path / "t.jsonl").exists()
    captured[0] = False
    run(model, 2)
    assert {len(call.ids) for call in read(tmp_path / "t.jsonl").calls} == {2}


def test_a_file_that_cannot_be_written_ends_the_record_and_no_request(
    model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.jsonl").mkdir()
    record(model, tmp_path / "t.jsonl", lambda: False)
    assert torch.equal(run(model, 2), run(KimiLinearForCausalLM(vllm_config=None), 2))
    (line,) = (r.getMessage() for r in caplog.records if r.name == "vllm.kgen")
    assert "routing is recorded no more" in line and "\n" not in line


def test_a_trace_is_bounded_and_one_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Writer(path, 16, 2, most=3) as trace:
        trace.add(1, [[0, 1], [2, 3]])
        trace.add(1, [[4, 5], [6, 7]])
        trace.add(1, [[8, 9]])
        trace.add(2, [[8, 9]])
    assert read(path).tokens(1) == ((0, 1), (2, 3), (4, 5)) and read(path).tokens(2) == ((8, 9),)
    path.write_text(path.read_text()[:-5])
    assert read(path).layers == (1,)


HEAD = json.dumps({"schema": SCHEMA, "experts": 16, "top_k": 2}) + "\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no routing trace"),
        ("[]\n", "no routing trace"),
        ('{"schema": "kgen.routing-trace/2"}\n', "not 'kgen.routing-trace/1'"),
        (HEAD + '{"layer": 1}\n', "KeyError"),
        (HEAD + '{"layer": 1, "ids": [[0, 16]]}\n', "line 2: a token does not have 2 different experts below 16"),
        (HEAD + '{"layer": 1, "ids": [[3, 3]]}\n', "line 2: a token"),
        (HEAD + '{"layer": 1, "ids": [[]]}\n', "line 2: a token"),
        (HEAD + '{"layer": 1, "ids": [[3, 4, 4]]}\n', "line 2: a token"),
        (HEAD + '{"layer": 1, "ids": [[3, Infinity]]}\n', "OverflowError"),
        (HEAD + '{"layer": "x", "ids": []}\n', "TypeError"),
    ],
)
def test_what_is_no_trace_is_one_line(text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(TraceError, match=word) as caught:
        read(tmp_path / "t")
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none")


def test_the_settings_name_the_file() -> None:
    found = parse({"kgen": {"routing": "t.jsonl"}}, ("moe_shared",))
    assert found is not None and found.routing == "t.jsonl"
    with pytest.raises(SettingsError, match='"routing"] must be a path'):
        parse({"kgen": {"routing": 3}}, ("moe_shared",))


def test_a_promoted_call_lies_in_a_range_of_its_name_and_a_stock_call_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    problem = REGISTRY.get("moe_shared").problem("nano", 8, "sm_90a")
    place = fill(tmp_path / "set", make_case(ratios={8: WIN}))
    promotion = KernelSet(place.path).manifest().promotions[0]
    op = REGISTRY.get("moe_shared")
    made = [Served(op, problem, lambda values: said.append("run"), "", each, dict) for each in (promotion, None)]
    values = {**op.inputs(problem, "normal", 1, "cpu"), **made[0].outputs("cpu")}
    made[0](values)
    assert said == ["run"]  # no CUDA here: no ranges
    monkeypatch.setattr(ranges, "_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("pop"))
    for served in made:
        served(values)
    assert said[1:] == ["kgen moe_shared/nano/t8/sm_90a", "run", "pop", "run"]
