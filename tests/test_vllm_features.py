"""Features of a server beside promoted kernels: with a small engine in vLLM's place, and what its findings mean."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import vllm_features, vllm_words
from support.vllm_features import FEATURES, SEEDS, Feature, Request, drawn, features, rules_bind, served, shown
from support.vllm_one import Engines, Results
from test_vllm_one import VOCAB, Builder
from test_vllm_one import place as place  # a fixture


def side(tokens: list[list[int]], **more: Any) -> dict[str, Any]:
    plain = {"cached": [0] * len(tokens), "steps": 4, "prompts": [1], "most_steps": 4, "right": [True] * len(tokens)}
    return {"tokens": tokens, **plain, **more}


def two(vocab: int) -> list[Request]:
    return [Request([3]), Request([4])]


def said(text: str) -> list[int]:
    return [*(3 + byte for byte in text.encode()), vllm_words.END]


ALWAYS = Feature({}, two, 2, lambda found: True)
CAPTURED = {"1": {"moe_shared": {"promoted": 1}, "dense_mlp": {"promoted": 0}}}


def test_prompts_are_fixed_and_of_the_vocabulary() -> None:
    for feature in FEATURES.values():
        prompts = [r.prompt for r in feature.requests(VOCAB)]
        assert prompts == [r.prompt for r in feature.requests(VOCAB)] and len(prompts) > 1
        assert all(3 <= token < VOCAB for prompt in prompts for token in prompt)
    heads = [r.prompt for r in FEATURES["prefix caching"].requests(VOCAB)]
    assert len({tuple(p[:1600]) for p in heads}) == 1 and len({tuple(p) for p in heads}) == len(heads)
    assert drawn(VOCAB, 1, 50) != drawn(VOCAB, 2, 50)


def test_no_request_is_longer_than_its_engines_allow() -> None:
    for feature in FEATURES.values():
        longest = max(len(r.prompt) for r in feature.requests(VOCAB)) + feature.tokens
        assert longest <= feature.keywords.get("max_model_len", 1024)  # the builder's
        overrides = feature.keywords.get("hf_overrides", {"max_position_embeddings": 4096})  # the builder's
        assert feature.keywords.get("max_model_len", 1024) <= overrides["max_position_embeddings"]


def test_a_feature_is_in_order_only_right_used_and_with_promoted_kernels() -> None:
    good = side([[1, 2], [3, 4]])
    found = shown(ALWAYS, good, good, CAPTURED)
    assert found["ok"] and found["verdict"] == "in order"
    assert found["promoted"] == ["moe_shared"] and found["common_head"] == [1.0, 1.0]
    assert shown(ALWAYS, good, side([[1, 9], [3, 4]]), CAPTURED)["common_head"] == [0.5, 1.0]
    wrong = shown(ALWAYS, good, side([[1, 2], [3]], right=[True, False]), CAPTURED)
    assert not wrong["ok"] and wrong["verdict"] == "on: 1 of 2 answers are not as asked"
    stock = shown(ALWAYS, good, good, {"1": {"moe_shared": {"promoted": 0}}})
    assert not stock["ok"] and stock["verdict"] == "no promoted kernel was captured"
    unused = Feature({}, two, 2, lambda found: found is good)
    assert shown(unused, good, side([[1, 2], [3, 4]]), CAPTURED)["verdict"] == "on: not in use"


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


def of_seeds(seeds: Sequence[int]) -> dict[str, Any]:
    """Answers that their seeds decide, but for the rounding of every fourth token."""
    rows = [drawn(VOCAB, seed, 64) for seed in seeds]
    return side([[99 + i if at % 4 == i % 4 else t for at, t in enumerate(row)] for i, row in enumerate(rows)])


def test_seeds_are_in_use_where_they_and_nothing_else_decide() -> None:
    used = FEATURES["sampling with seeds"].used
    assert [r.sampling["seed"] for r in FEATURES["sampling with seeds"].requests(VOCAB)] == list(SEEDS)
    assert used(of_seeds(SEEDS))
    assert not used(of_seeds(range(len(SEEDS)))) and not used(of_seeds([1] * len(SEEDS)))


def test_rules_bind_only_where_an_answer_without_them_is_another() -> None:
    assert rules_bind(side([said("north"), [4000, 4001]]))
    assert not rules_bind(side([said("north"), said("east")]))


@pytest.mark.parametrize(
    ("fits", "right", "wrong"),
    [
        (vllm_words.of_pattern, "blue-0123", ("blue-012", "pink-0123", "blue-0123 ", "")),
        (vllm_words.of_choice, "west", ("wes", "West", "northwest", "")),
        (
            vllm_words.of_object,
            '{"yes":true,"word":"two","code":"abc"}',
            (
                '{"yes":true,"word":"two","code":"abz"}',
                '{"yes":1,"word":"two","code":"abc"}',
                '{"yes":true,"word":"four","code":"abc"}',
                '{"yes":true,"word":"two"}',
                '{"yes":true,"word":"two","code":"abc"',
                "true",
            ),
        ),
    ],
)
def test_an_answer_is_right_only_whole_and_ended(fits: Any, right: str, wrong: Sequence[str]) -> None:
    assert fits(said(right)) and not any(fits(said(text)) for text in wrong)
    assert not fits(said(right)[:-1]) and not fits([259, *said(right)]) and not fits([1, *said(right)])


def test_the_tokenizer_knows_each_byte_once_and_the_ids_that_have_a_meaning(tmp_path: Path) -> None:
    folder = vllm_words.write_tokenizer(tmp_path / "new")
    found = json.loads((folder / "tokenizer.json").read_text())
    known = found["model"]["vocab"]
    assert sorted(known.values()) == list(range(259)) and known["a"] == 3 + ord("a") and known["\u0120"] == 3 + ord(" ")
    assert {t["content"]: t["id"] for t in found["added_tokens"]} == {"<pad>": 0, "<bos>": 1, "<eos>": vllm_words.END}
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<eos>"
    assert vllm_words.text(said("é ~")) == "é ~"


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
    long = Request([5], fits=lambda tokens: len(tokens) > 6)
    feature = Feature({}, lambda vocab: [Request([3]), Request([4], {"seed": 1}), long], 6, lambda found: True)
    found = served(engine, feature, VOCAB, "x")
    assert added == [("x-0", False), ("x-1", False), ("x-2", True)]
    assert [len(t) for t in found["tokens"]] == [6, 6, 6] and found["steps"] == found["most_steps"] == 12
    assert found["right"] == [True, True, False]


def test_a_request_may_have_parameters_and_a_rule_of_its_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = SimpleNamespace(StructuredOutputsParams=lambda **rule: ("rule", rule))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", rules)
    params = vllm_features.sampling(ALWAYS, Request([3], {"structured": {"regex": "a"}, "ignore_eos": False}))
    assert params.structured_outputs == ("rule", {"regex": "a"}) and not params.ignore_eos and params.max_tokens == 2
    plain = vllm_features.sampling(ALWAYS, Request([3], {"temperature": 2.0, "seed": 7}))
    assert plain.ignore_eos and (plain.temperature, plain.seed) == (2.0, 7) and not hasattr(plain, "structured_outputs")


def test_features_of_the_same_keywords_share_two_engines(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builder, built = Builder(place), list[dict[str, Any]]()
    stock_engine = builder.build_engine

    def noted(keywords: dict[str, Any], stall: float) -> Any:
        built.append(keywords)
        return stock_engine(keywords, stall)

    builder.build_engine = noted  # type: ignore[method-assign]
    of = {
        "one": ALWAYS,
        "two": Feature({"more": 1}, two, 3, lambda found: False),
        "three": ALWAYS,
        "four": Feature({}, two, 3, lambda found: True, speaks=True),
    }
    monkeypatch.setattr(vllm_features, "FEATURES", of)
    results = Results(place / "features.json")
    features(place, place, Engines(builder, builder.options, 0), results, tuple(of))
    found = json.loads((place / "features.json").read_text())
    assert found["one"]["ok"] and found["two"]["whole"] and found["three"]["ok"] and found["done"]
    assert "[features] one: in order" in (out := capsys.readouterr().out) and "two: stock: not in use; on: not" in out
    assert [("more" in k, "additional_config" in k, k.get("skip_tokenizer_init")) for k in built] == [
        (False, False, None),
        (False, True, None),
        (True, False, None),
        (True, True, None),
        (False, False, False),
        (False, True, False),
    ]
    assert (Path(built[-1]["tokenizer"]) / "tokenizer.json").is_file()


def test_a_feature_that_fails_leaves_the_others(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = SimpleNamespace(options=SimpleNamespace(vocab=VOCAB), plugin=lambda: "registered")
    results = Results(place / "features.json")
    features(place, place, engines, results, ("prefix caching", "n-gram speculation"))
    assert "failed" in results.found["prefix caching"] and "failed" in results.found["n-gram speculation"]
    assert results.found["done"] and "[features] n-gram speculation: failed" in capsys.readouterr().out
