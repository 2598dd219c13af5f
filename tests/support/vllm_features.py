"""(c) of support/vllm_one.py: features of the server while promoted kernels are in its decode graphs.

Features of the same keywords share two engines, stock's and the plugin's. Shown of each: that every answer is as its
request asked, that the feature was in use, that promoted kernels were captured, and how much of the tokens is the same,
where weights are noise and the choices close. A verdict says which of them fails. Not covered: features together.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import vllm_words
from support.vllm_proof import head

FIRST_TOKEN = 3  # those before it have a meaning
SEEDS = (1, 1, 2, 2)
SEEDED = tuple(range(100, 164))  # few tokens and a high temperature: the seed decides more than the logits
SAME, OTHER = 0.5, 0.25  # share of equal tokens: at least, where seeds are the same, and at most, where they are not

Found = Mapping[str, Any]
Fits = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Request:
    """`sampling`: of vLLM's parameters, and "structured" for its structured outputs.

    `fits`: whether an answer is right; None: it is where it is as long as asked.
    """

    prompt: list[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    fits: Fits | None = None


@dataclass(frozen=True)
class Feature:
    """`requests` of a vocabulary: the first is served alone before the others come. `used`: of a side's findings.

    `speaks`: the engine gets a tokenizer.
    """

    keywords: Mapping[str, Any]
    requests: Callable[[int], list[Request]]
    tokens: int
    used: Callable[[Found], bool]
    speaks: bool = False


def drawn(vocab: int, seed: int, length: int) -> list[int]:
    """Token ids of a fixed sequence, the same on every machine."""
    found, state = [], seed
    for _ in range(length):
        state = (1103515245 * state + 12345) % 2**31
        found.append(FIRST_TOKEN + (state >> 8) % (vocab - FIRST_TOKEN))
    return found


def same_head(vocab: int) -> list[Request]:
    head = drawn(vocab, 1, 1600)
    return [Request([*head, *drawn(vocab, seed, 20)]) for seed in range(2, 6)]


def long_prompt(vocab: int) -> list[Request]:
    return [Request(drawn(vocab, 7, 24)), Request(drawn(vocab, 8, 33_000))]


def said_before(vocab: int) -> list[Request]:
    """Three tokens may be said; what was said before is said again."""
    few = {"allowed_token_ids": [5, 6, 7]}
    return [Request(drawn(vocab, seed, 12) * 8, few) for seed in (9, 10, 11)]


def seeded(vocab: int) -> list[Request]:
    """One prompt, two seeds, each of them twice."""
    few = {"temperature": 2.0, "allowed_token_ids": [t % vocab for t in SEEDED]}
    return [Request(drawn(vocab, 12, 24), {**few, "seed": seed}) for seed in SEEDS]


def ruled(vocab: int) -> list[Request]:
    """A pattern, a choice, an object, each of them twice, beside a request without rules."""
    rules: list[tuple[dict[str, Any], Fits]] = [
        ({"regex": vllm_words.COLOURS}, vllm_words.of_pattern),
        ({"choice": list(vllm_words.WINDS)}, vllm_words.of_choice),
        ({"json": vllm_words.OBJECT}, vllm_words.of_object),
    ]
    found = [
        Request(drawn(vocab, 13 + i, 24), {"structured": rule, "ignore_eos": False}, fits)
        for i, (rule, fits) in enumerate(rules * 2)
    ]
    return [*found, Request(drawn(vocab, 20, 24))]


def equal_share(a: Sequence[int], b: Sequence[int]) -> float:
    return sum(x == y for x, y in zip(a, b, strict=False)) / max(len(a), len(b))


def seeds_decide(found: Found) -> bool:
    """Requests of one seed are alike, in whatever batch they are; those of two seeds are not."""
    t = found["tokens"]
    pairs = [(i, j) for i in range(len(t)) for j in range(i)]
    same = [equal_share(t[i], t[j]) for i, j in pairs if SEEDS[i] == SEEDS[j]]
    other = [equal_share(t[i], t[j]) for i, j in pairs if SEEDS[i] != SEEDS[j]]
    return min(same) >= SAME and max(other) <= OTHER


def rules_bind(found: Found) -> bool:
    """The request without rules says what no rule allows: without them the others would too."""
    free = found["tokens"][-1]
    return all(not fits(free) for fits in (vllm_words.of_pattern, vllm_words.of_choice, vllm_words.of_object))


# Of three features that do not meet in one request; an engine takes half a minute to start.
COMMON: Mapping[str, Any] = {
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    "max_model_len": 36_864,
    "max_num_batched_tokens": 8192,
    "hf_overrides": {"max_position_embeddings": 36_864},  # the model has no positions; vLLM asks all the same
}
FEATURES: Mapping[str, Feature] = {
    "structured output": Feature(COMMON, ruled, 64, rules_bind, speaks=True),
    "sampling with seeds": Feature(COMMON, seeded, 64, seeds_decide, speaks=True),
    "a context of 33,000 tokens": Feature(COMMON, long_prompt, 32, lambda f: max(f["prompts"]) >= 32_768, speaks=True),
    "prefix caching": Feature(
        {"enable_prefix_caching": True, "max_model_len": 2048}, same_head, 32, lambda f: max(f["cached"][1:]) > 0
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
    ),
}


def sampling(feature: Feature, request: Request) -> Any:
    """vLLM's parameters of a request."""
    from vllm import SamplingParams

    more = dict(request.sampling)
    if rule := more.pop("structured", None):
        from vllm.sampling_params import StructuredOutputsParams

        more["structured_outputs"] = StructuredOutputsParams(**rule)
    plain = {"max_tokens": feature.tokens, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
    return SamplingParams(**{**plain, **more})


def right(feature: Feature, request: Request, tokens: Sequence[int]) -> bool:
    """Whether an answer is as its request asked."""
    return request.fits(tokens) if request.fits else len(tokens) == feature.tokens


def served(llm: Any, feature: Feature, vocab: int, tag: str) -> dict[str, Any]:
    """What one engine makes of a feature's requests."""
    requests = feature.requests(vocab)
    found: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    read: dict[str, int] = {}  # tokens of each prompt, as the engine has them
    steps = 0
    for group in (range(1), range(1, len(requests))):
        for i in group:
            prompt = {"prompt_token_ids": requests[i].prompt}
            llm.llm_engine.add_request(f"{tag}-{i}", prompt, sampling(feature, requests[i]))
        while llm.llm_engine.has_unfinished_requests():
            steps += 1
            for o in llm.llm_engine.step():
                found[o.request_id] = list(o.outputs[0].token_ids)
                cached[o.request_id] = int(getattr(o, "num_cached_tokens", 0) or 0)
                read[o.request_id] = len(o.prompt_token_ids or ())
    names = [next(k for k in found if k == f"{tag}-{i}" or k.startswith(f"{tag}-{i}-")) for i in range(len(requests))]
    return {
        "tokens": [found[n] for n in names],
        "cached": [cached[n] for n in names],
        "prompts": [read[n] for n in names],
        "right": [right(feature, r, found[n]) for n, r in zip(names, requests, strict=True)],
        "steps": steps,
        "most_steps": 2 * feature.tokens,  # two groups, a token a step
    }


def verdict(sides: Mapping[str, Found], feature: Feature, promoted: Sequence[str]) -> str:
    """ "in order", or what is not."""
    wrong = [
        f"{side}: {sum(not r for r in found['right'])} of {len(found['right'])} answers are not as asked"
        for side, found in sides.items()
        if not all(found["right"])
    ]
    wrong += [f"{side}: not in use" for side, found in sides.items() if not feature.used(found)]
    return "; ".join(wrong + ([] if promoted else ["no promoted kernel was captured"])) or "in order"


def shown(feature: Feature, stock: Found, on: Found, captured: Mapping[str, Any]) -> dict[str, Any]:
    """One feature's part of the record. `captured`: of the plugin's own."""
    sides = {"stock": stock, "on": on}
    promoted = sorted({op for by_op in captured.values() for op, calls in by_op.items() if calls["promoted"]})
    said = verdict(sides, feature, promoted)
    lengths = [max(len(a), len(b)) for a, b in zip(on["tokens"], stock["tokens"], strict=True)]
    return {
        "verdict": said,
        "ok": said == "in order",
        "whole": all(right for found in sides.values() for right in found["right"]),
        "used": all(feature.used(found) for found in sides.values()),
        "promoted": promoted,
        **{key: {side: found[key] for side, found in sides.items()} for key in ("steps", "cached", "right")},
        "common_head": [
            head(a, b) / n for a, b, n in zip(on["tokens"], stock["tokens"], lengths, strict=True)
        ],
    }  # fmt: skip


class Pairs:
    """Two engines for each set of keywords, stock's and the plugin's, with the plugin's record."""

    def __init__(self, kernels: Path, out: Path, engines: Any) -> None:
        self._kernels, self._out, self._engines = kernels, out, engines
        self._built: dict[str, tuple[Any, Any, Path]] = {}

    def of(self, feature: Feature) -> tuple[Any, Any, Path]:
        name = json.dumps([feature.keywords, feature.speaks], sort_keys=True)
        if name not in self._built:
            more = dict(feature.keywords)
            if feature.speaks:
                tokenizer = vllm_words.write_tokenizer((self._out / "tokenizer").resolve())
                more |= {"skip_tokenizer_init": False, "tokenizer": str(tokenizer)}
            record = (self._out / f"feature-{len(self._built)}.record.json").resolve()
            key = {"set": str(self._kernels.resolve()), "record": str(record)}
            stock = self._engines.build(more=more)
            self._built[name] = (stock, self._engines.build({"kgen": key}, more=more), record)
        return self._built[name]


def features(kernels: Path, out: Path, engines: Any, results: Any, chosen: Sequence[str] = tuple(FEATURES)) -> None:
    """Every feature into `results`, and its verdict into the log; one that fails leaves the others."""
    pairs = Pairs(kernels, out, engines)

    def case(name: str) -> dict[str, Any]:
        feature, vocab, slug = FEATURES[name], engines.options.vocab, name.replace(" ", "-").replace(",", "")
        stock, on, record = pairs.of(feature)
        sides = [served(llm, feature, vocab, f"{side}-{slug}") for side, llm in (("stock", stock), ("on", on))]
        return shown(feature, *sides, json.loads(record.read_text())["captured"])

    results.put("plugin", engines.plugin())  # without its key it changes nothing
    for name in chosen:
        found = results.attempt(name, lambda name=name: case(name))
        print(f"[features] {name}: {found['verdict'] if found else 'failed'}", flush=True)
    results.put("done", True)
