"""The committed run of promoted kernels in a real vLLM: what it holds, and that the pages say the same."""

import importlib.util
from types import ModuleType
from typing import Any

import pytest
from support import vllm_served
from support.checkout import ROOT
from support.vllm_proof import isolation, trigger
from support.vllm_served import KINDS, record


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_vllm", ROOT / "benchmarks" / "vllm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def events() -> Any:
    return tool().read_events()


def test_the_times_are_those_of_the_committed_kernels_unless_rounds_by_turns_gave_better_ones(events: Any) -> None:
    found = record()
    if not found["by_turns"]:
        assert found["times"] == tool().once(events, found["environment"]["config"])
    assert list(found["times"]) == ["1", "2", "4", "8", "16", "32", "64"]


def test_promoted_kernels_are_in_the_trace_as_often_as_the_plugins_record_says(events: Any) -> None:
    found = record()
    assert found["trigger"] == trigger(events["on"], found["plan"]) == []
    for by_op in found["plan"]["captured"].values():
        for op, calls in by_op.items():
            assert calls["promoted"] in (0, len(found["plan"]["seats"][op]["layers"]))


def test_without_the_plugins_kernels_the_trace_is_another_one(events: Any) -> None:
    assert trigger(events["stock"], record()["plan"]) and isolation(events["stock"], events["on"])
    assert isolation(events["stock"], events["stock"]) == []


def test_two_processes_with_and_without_the_plugin_ran_the_same(events: Any) -> None:
    assert record()["isolation_in_two_processes"]["differences"] == []


def test_all_that_was_broken_on_purpose_ran_stock_and_said_so_in_one_line() -> None:
    damage = record()["damage"]
    assert len(damage) == 5 and all(c["ok"] and c["equal_tokens"] and c["lines"] == 1 for c in damage.values())


def test_the_page_names_every_op_size_and_ratio() -> None:
    found, text = record(), vllm_served.region()
    for op in found["plan"]["seats"]:
        assert f"| {op} | " in text
    for batch, t in found["times"].items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {batch} | "))
        assert all(f"({t[kind]['ratio']:.2f}×)" in row for kind in KINDS) and f"{t['sum']['ratio']:.2f}×" in row
    assert f"{found['times']['1']['sum']['ratio']:.2f}×" in vllm_served.headline()


def test_the_page_says_whether_stock_and_promoted_took_turns() -> None:
    found = record()
    assert "not by turns" in vllm_served.how({**found, "by_turns": False})
    turns = {"by_turns": True, "times": {"1": {"rounds": 3}, "8": {"rounds": 2}}}
    assert vllm_served.how(turns) == "medians over 2 to 3 rounds, stock and promoted by turns"


def test_what_the_plugin_changes_without_its_key_is_in_the_page_by_kind() -> None:
    one = ["batch 1: half: other count of x", "batch 8: half: other count of x", "batch 8: other tokens"]
    two = {"batches": [1, 8], "differences": ["batch 8: other tokens"]}
    text = vllm_served.isolated({"isolation": one, "isolation_in_two_processes": two})
    assert "half: other count of x (at 1, 8); other tokens (at 8); whether stock" in text
    assert text.endswith("In two processes, at 1 and 8 requests: other tokens (at 8).")
    clean = vllm_served.isolated({"isolation": [], "stock_repeats": {"1": True, "8": False}})
    assert "engine: nothing, where stock gives its own tokens again at all but 8." in clean
    assert "were not compared" in clean
    assert vllm_served.isolated(record()) in " ".join(vllm_served.region().split())


def test_a_broken_start_that_failed_is_told_and_breaks_no_page() -> None:
    text = vllm_served.damage_table({"damage": {"one": {"failed": "no memory"}, **record()["damage"]}})
    assert "| one | failed: no memory |" in text and "| no manifest | stock's | 1 |" in text
    assert "failed, no memory" in vllm_served.joined({"churn": {"failed": "no memory"}})


def test_no_folder_of_the_machine_that_ran_is_in_the_record() -> None:
    assert "/tmp/" not in vllm_served.RECORD.read_text(encoding="utf-8")


def test_features_are_told_in_use_or_failed_and_their_absence_too() -> None:
    assert vllm_served.features({}) == ["Prefix caching, long contexts and speculation were not tried on a GPU."]
    case = {"ok": True, "whole": False, "used": True, "promoted": ["attn_res"], "common_head": [1.0, 0.5]}
    _, text = vllm_served.features({"features": {"one": case, "two": {"failed": "ValueError: no"}}})
    assert "| one | no | yes | attn_res | 100 %, 50 % |" in text and "failed: ValueError: no" in text
