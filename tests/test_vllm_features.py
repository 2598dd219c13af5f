"""Features of a server beside promoted kernels: with a small engine in vLLM's place, and what its findings mean."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import vllm_features
from support.vllm_features import FEATURES, Feature, drawn, features, served, shown
from support.vllm_one import Engines, Results
from test_vllm_one import VOCAB, Builder
from test_vllm_one import place as place  # a fixture


def side(tokens: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"tokens": tokens, "cached": [0] * len(tokens), "steps": 4, "prompts": [1], "most_steps": 4, **more}


ALWAYS = Feature({}, lambda vocab: [[3], [4]], 2, lambda found: True)
CAPTURED = {"1": {"moe_shared": {"promoted": 1}, "dense_mlp": {"promoted": 0}}}


def test_prompts_are_fixed_and_of_the_vocabulary() -> None:
    for feature in FEATURES.values():
        prompts = feature.prompts(VOCAB)
        assert prompts == feature.prompts(VOCAB) and len(prompts) > 1
        assert all(3 <= token < VOCAB for prompt in prompts for token in prompt)
    heads = FEATURES["prefix caching"].prompts(VOCAB)
    assert len({tuple(p[:1600]) for p in heads}) == 1 and len({tuple(p) for p in heads}) == len(heads)
    assert drawn(VOCAB, 1, 50) != drawn(VOCAB, 2, 50)


def test_a_feature_is_in_order_only_whole_used_and_with_promoted_kernels() -> None:
    good = side([[1, 2], [3, 4]])
    found = shown(ALWAYS, good, good, CAPTURED)
    assert found["ok"] and found["promoted"] == ["moe_shared"] and found["common_head"] == [1.0, 1.0]
    assert shown(ALWAYS, good, side([[1, 9], [3, 4]]), CAPTURED)["common_head"] == [0.5, 1.0]
    assert not shown(ALWAYS, good, side([[1, 2], [3]]), CAPTURED)["ok"]
    assert not shown(ALWAYS, good, good, {"1": {"moe_shared": {"promoted": 0}}})["ok"]


@pytest.mark.parametrize(
    ("name", "used", "unused"),
    [
        ("prefix caching", {"cached": [0, 768]}, {"cached": [768, 0]}),
        ("a context of 33,000 tokens", {"prompts": [24, 33_000]}, {"prompts": [24, 900]}),
        ("n-gram speculation", {"steps": 100, "most_steps": 128}, {"steps": 128, "most_steps": 128}),
    ],
)
def test_a_feature_that_was_not_used_is_not_shown(
    name: str, used: Mapping[str, Any], unused: Mapping[str, Any]
) -> None:
    assert FEATURES[name].used(side([], **used)) and not FEATURES[name].used(side([], **unused))


def test_the_first_request_is_served_alone_and_all_are_found_by_their_names(place: Path) -> None:
    builder = Builder(place)
    engine = builder.build_engine({}, 1)
    added: list[tuple[str, bool]] = []
    inner = engine.llm_engine
    add = inner.add_request

    def noted(name: str, prompt: Any, params: Any) -> None:
        added.append((name, inner.has_unfinished_requests()))
        add(name, prompt, params)

    inner.add_request = noted
    feature = Feature({}, lambda vocab: [[3], [4], [5]], 6, lambda found: True)
    found = served(engine, feature, VOCAB, "x")
    assert added == [("x-0", False), ("x-1", False), ("x-2", True)]
    assert [len(t) for t in found["tokens"]] == [6, 6, 6] and found["steps"] == found["most_steps"] == 12


def test_every_feature_gets_two_engines_of_its_own_keywords(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, built = Builder(place), list[dict[str, Any]]()
    stock_engine = builder.build_engine

    def noted(keywords: dict[str, Any], stall: float) -> Any:
        built.append(keywords)
        return stock_engine(keywords, stall)

    builder.build_engine = noted  # type: ignore[method-assign]
    monkeypatch.setattr(vllm_features, "FEATURES", {"one": ALWAYS, "two": Feature({"bad": 1}, ALWAYS.prompts, 3, len)})
    results = Results(place / "features.json")
    features(place, place, Engines(builder, builder.options, 0), results, ("one", "two"))
    found = json.loads((place / "features.json").read_text())
    assert found["one"]["ok"] and found["two"]["whole"] and found["done"]
    assert [("bad" in k, "additional_config" in k) for k in built] == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]


def test_a_feature_that_fails_leaves_the_others(place: Path) -> None:
    engines = SimpleNamespace(options=SimpleNamespace(vocab=VOCAB), plugin=lambda: "registered")
    results = Results(place / "features.json")
    features(place, place, engines, results, ("prefix caching", "n-gram speculation"))
    assert "failed" in results.found["prefix caching"] and "failed" in results.found["n-gram speculation"]
    assert results.found["done"]
