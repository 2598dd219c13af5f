"""(c) of support/vllm_one.py: features of the server while promoted kernels are in its decode graphs.

Each feature gets two engines of the same keywords, stock's and the plugin's. Shown: that all requests end as they
should, that the feature was in use, that promoted kernels were captured, and how much of the tokens is the same, where
weights are noise and the choices close. Not covered: structured output, which needs a tokenizer; such a model has none.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.vllm_proof import head

Prompts = Callable[[int], list[list[int]]]
FIRST_TOKEN = 3  # those before it have a meaning


@dataclass(frozen=True)
class Feature:
    """`prompts` of a vocabulary: the first is served alone before the others come. `used`: of a side's findings.

    `allowed`: the tokens that may be said; a few, and what was said before is said again.
    """

    keywords: Mapping[str, Any]
    prompts: Prompts
    tokens: int
    used: Callable[[Mapping[str, Any]], bool]
    allowed: tuple[int, ...] | None = None


def drawn(vocab: int, seed: int, length: int) -> list[int]:
    """Token ids of a fixed sequence, the same on every machine."""
    found, state = [], seed
    for _ in range(length):
        state = (1103515245 * state + 12345) % 2**31
        found.append(FIRST_TOKEN + (state >> 8) % (vocab - FIRST_TOKEN))
    return found


def same_head(vocab: int) -> list[list[int]]:
    head = drawn(vocab, 1, 1600)
    return [[*head, *drawn(vocab, seed, 20)] for seed in range(2, 6)]


def long_prompt(vocab: int) -> list[list[int]]:
    return [drawn(vocab, 7, 24), drawn(vocab, 8, 33_000)]


def said_before(vocab: int) -> list[list[int]]:
    return [drawn(vocab, seed, 12) * 8 for seed in (9, 10, 11)]


FEATURES: Mapping[str, Feature] = {
    "prefix caching": Feature(
        {"enable_prefix_caching": True, "max_model_len": 2048}, same_head, 32, lambda f: max(f["cached"][1:]) > 0
    ),
    "a context of 33,000 tokens": Feature(
        {"max_model_len": 36_864, "max_num_batched_tokens": 8192},
        long_prompt,
        32,
        lambda f: max(f["prompts"]) >= 32_768,
    ),
    "n-gram speculation": Feature(
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 4,
                "prompt_lookup_min": 2,
            }
        },
        said_before,
        64,
        lambda f: f["steps"] < f["most_steps"],
        (5, 6, 7),
    ),
}


def served(llm: Any, feature: Feature, vocab: int, tag: str) -> dict[str, Any]:
    """What one engine makes of a feature's requests."""
    from vllm import SamplingParams

    rules: dict[str, Any] = {"allowed_token_ids": list(feature.allowed)} if feature.allowed else {}
    params = SamplingParams(max_tokens=feature.tokens, temperature=0.0, ignore_eos=True, detokenize=False, **rules)
    prompts = feature.prompts(vocab)
    found: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    read: dict[str, int] = {}  # tokens of each prompt, as the engine has them
    steps = 0
    for group in (range(1), range(1, len(prompts))):
        for i in group:
            llm.llm_engine.add_request(f"{tag}-{i}", {"prompt_token_ids": prompts[i]}, params)
        while llm.llm_engine.has_unfinished_requests():
            steps += 1
            for o in llm.llm_engine.step():
                found[o.request_id] = list(o.outputs[0].token_ids)
                cached[o.request_id] = int(getattr(o, "num_cached_tokens", 0) or 0)
                read[o.request_id] = len(o.prompt_token_ids or ())
    names = [next(k for k in found if k == f"{tag}-{i}" or k.startswith(f"{tag}-{i}-")) for i in range(len(prompts))]
    return {
        "tokens": [found[n] for n in names],
        "cached": [cached[n] for n in names],
        "prompts": [read[n] for n in names],
        "steps": steps,
        "most_steps": 2 * feature.tokens,  # two groups, a token a step
    }


def shown(
    feature: Feature, stock: Mapping[str, Any], on: Mapping[str, Any], captured: Mapping[str, Any]
) -> dict[str, Any]:
    """One feature's part of the record. `captured`: of the plugin's own."""
    whole = all(len(t) == feature.tokens for side in (stock, on) for t in side["tokens"])
    promoted = sorted({op for by_op in captured.values() for op, calls in by_op.items() if calls["promoted"]})
    pairs = list(zip(on["tokens"], stock["tokens"], strict=True))
    return {
        "whole": whole,
        "used": feature.used(on) and feature.used(stock),
        "promoted": promoted,
        "steps": {"stock": stock["steps"], "on": on["steps"]},
        "cached": {"stock": stock["cached"], "on": on["cached"]},
        "common_head": [head(a, b) / feature.tokens for a, b in pairs],
        "ok": whole and feature.used(on) and feature.used(stock) and bool(promoted),
    }


def features(kernels: Path, out: Path, engines: Any, results: Any, chosen: Sequence[str] = tuple(FEATURES)) -> None:
    """Every feature into `results`; one that fails leaves the others."""

    def case(name: str) -> dict[str, Any]:
        feature, vocab, slug = FEATURES[name], engines.options.vocab, name.replace(" ", "-").replace(",", "")
        record = out / f"feature-{slug}.record.json"
        key = {"set": str(kernels.resolve()), "record": str(record.resolve())}
        stock = served(engines.build(more=feature.keywords), feature, vocab, f"stock-{slug}")
        on = served(engines.build({"kgen": key}, more=feature.keywords), feature, vocab, f"on-{slug}")
        return shown(feature, stock, on, json.loads(record.read_text())["captured"])

    results.put("plugin", engines.plugin())  # without its key it changes nothing
    for name in chosen:
        results.attempt(name, lambda name=name: case(name))
    results.put("done", True)
