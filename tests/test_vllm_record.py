"""The committed run of promoted kernels in a real vLLM: what it holds, and that the pages say the same."""

import importlib.util
import json
from pathlib import Path
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
    assert "failed, the run ended before" in vllm_served.joined({})


def test_no_folder_of_the_machine_that_ran_is_in_the_record() -> None:
    assert "/tmp/" not in vllm_served.RECORD.read_text(encoding="utf-8")


def test_features_are_told_with_their_verdict_or_failure_and_their_absence_too() -> None:
    (none,) = vllm_served.features({})
    assert none == "Structured output, seeds, prefix caching, long contexts and speculation were not tried on a GPU."
    case = {"verdict": "on: not in use", "promoted": ["attn_res"], "common_head": [1.0, 0.5]}
    _, text = vllm_served.features({"features": {"one": case, "two": {"failed": "ValueError: no"}}})
    assert "| one | on: not in use | attn_res | 100 %, 50 % |" in text and "failed: ValueError: no" in text


def test_the_page_says_how_far_rounds_differ_and_how_states_lay() -> None:
    assert vllm_served.spread({"ratio": 1.05, "least": 1.01, "greatest": 1.1}) == "1.05× (1.01–1.10)"
    assert vllm_served.spread({"ratio": 1.05}) == "1.05×"
    assert "one round" in vllm_served.brackets({"by_turns": True}) and not vllm_served.brackets({"by_turns": False})
    assert vllm_served.states({}) == vllm_served.states({"conv_states": {"failed": "no"}}) == ""
    same = {"conv_states": {"stock": [[4608, 3]], "on": [[4608, 3]]}}
    assert vllm_served.states(same) == " KDA's convolution states of a slot: 4608×3 on both sides."
    other = {"conv_states": {"stock": [[3, 4608]], "on": [[4608, 3]]}}
    assert "stock 3×4608, promoted 4608×3." in vllm_served.states(other)


def test_a_run_becomes_the_record_and_keeps_what_it_has_not_tried_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: Any
) -> None:
    made, before = tool(), record()
    monkeypatch.setattr(made, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(made, "EVENTS", tmp_path / "events.json.xz")
    (tmp_path / "record.json").write_text(json.dumps(before))
    one = {
        **before,
        "record": {**before["plan"], "refusals": []},
        "conv_states": {"stock": [[4608, 3]], "on": [[4608, 3]]},
    }
    feature = {"ok": True, "verdict": "in order", "promoted": ["attn_res"], "common_head": [1.0]}
    parts = {
        "one": one | {"times": {}},
        "features": {"plugin": "registered", "n-gram speculation": feature, "done": True},
    }
    for part, found in parts.items():
        (tmp_path / part).mkdir()
        (tmp_path / part / f"{part}.json").write_text(json.dumps(found))
    for side, name in made.SIDES.items():
        (tmp_path / "one" / name).write_text(json.dumps(events[side]))
    made.take(tmp_path, "abc1234")
    after = json.loads((tmp_path / "record.json").read_text())
    assert (after["commit"], after["damage_at"]) == ("abc1234", before["commit"])
    assert after["damage"] == before["damage"] and after["features"] == {"n-gram speculation": feature}
    assert after["conv_states"] == one["conv_states"] and after["times"] == made.once(
        events, before["environment"]["config"]
    )
    monkeypatch.setattr(vllm_served, "record", lambda: after)
    text = " ".join(vllm_served.region().split())
    assert (
        f"(kgen at commit {before['commit']})" in text
        and "| n-gram speculation | in order | attn_res | 100 % |" in text
    )
    assert "4608×3 on both sides" in text
