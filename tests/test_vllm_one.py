"""The run of stock and promoted engines by turns: with a small engine in vLLM's place, and what its numbers mean."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.vllm_damage import damage
from support.vllm_one import Engines, Results, distance, forced, heads, proof
from support.vllm_spans import layer_spans, summary
from support.vllm_standin import install
from torch import nn

VOCAB, WIDTH = 50, 8
CONFIG = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "linear_attn_config": {"kda_layers": [1, 2]}}


class Model(nn.Module):
    """Logits of a row: of its last token, and of how many rows there are, as rounding would have it."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embed = nn.Parameter(torch.randn(VOCAB, WIDTH, generator=generator), requires_grad=False)
        self.noise = noise
        self.attention = nn.Module()  # of KDA, as far as its states tell
        self.attention.f_b_proj = nn.Identity()
        self.attention.kv_cache = (torch.zeros(5, 24, 3), torch.zeros(5, 2))  # type: ignore[assignment]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.embed.T * (1 + 1e-3 * hidden.shape[0] + self.noise * torch.arange(VOCAB))


class Inner:
    """Adds, steps and finishes requests as vLLM's engine does."""

    def __init__(self, model: Model) -> None:
        self.model, self.running = model, dict[str, Any]()

    def apply_model(self, function: Any) -> list[Any]:
        return [function(self.model)]

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        ids = prompt["prompt_token_ids"]
        self.running[name] = SimpleNamespace(last=ids[-1], left=params.max_tokens, tokens=[], prompt=ids)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> list[Any]:
        rows = list(self.running.items())
        logits = self.model.compute_logits(self.model.embed[[r.last for _, r in rows]])
        for (name, r), token in zip(rows, logits.argmax(-1).tolist(), strict=True):
            r.last, r.left = token, r.left - 1
            r.tokens.append(token)
            if not r.left:
                del self.running[name]
        found = [(f"{name}-x", SimpleNamespace(token_ids=r.tokens)) for name, r in rows]
        prompts = {f"{name}-x": r.prompt for name, r in rows}
        return [SimpleNamespace(request_id=n, outputs=[o], prompt_token_ids=prompts[n]) for n, o in found]


class Builder:
    """The functions of a builder; `noise` of an engine with the plugin's key, whose kernels carry another name."""

    def __init__(self, folder: Path, noise: float = 0.0, record: bool = True) -> None:
        self.folder, self.noise, self.record, self.K3 = folder, noise, record, dict[str, Any]()
        self.options = SimpleNamespace(dir=str(folder / "model"), stall=1, vocab=VOCAB, tokens=4)

    def set_environment(self, options: Any) -> None: ...

    def register_loader(self, config: Any, options: Any) -> None: ...

    def text_config(self, options: Any) -> dict[str, Any]:
        return CONFIG

    def engine_keywords(self, options: Any) -> dict[str, Any]:
        return {}

    def build_engine(self, keywords: dict[str, Any], stall: float) -> Any:
        key = keywords.get("additional_config", {}).get("kgen")
        if key:
            seats = {"moe_shared": {"layers": [1], "launches": {"8": {"per_call": {"promoted": 1}}}}}
            captured = {str(n): {"moe_shared": {"promoted": 1}} for n in (1, 8)}
            Path(key["record"]).write_text(json.dumps({"seats": seats, "captured": captured}))
        engine = SimpleNamespace(llm_engine=Inner(Model(self.noise if key else 0.0)))
        engine.kernel = "promoted" if key and self.record else "stock"
        return engine

    def start(self, llm: Any, batch: int, options: Any, tokens: int, tag: str) -> None:
        for b in range(batch):
            llm.llm_engine.add_request(f"{tag}-{b}", {"prompt_token_ids": [b]}, SimpleNamespace(max_tokens=tokens))

    def drain(self, llm: Any) -> tuple[dict[str, list[int]], list[float]]:
        found, times = {}, []
        while llm.llm_engine.has_unfinished_requests():
            times.append(2e-3)
            found |= {o.request_id: list(o.outputs[0].token_ids) for o in llm.llm_engine.step()}
        return found, times

    def profile_step(self, llm: Any, batch: int, options: Any, tag: str) -> list[dict[str, Any]]:
        us = 10.0 if llm.kernel == "stock" else 5.0
        names = ["attn_res", "gemm", "attn_res", "gemm", "attn_res", "gemm", "attn_res", llm.kernel, "attn_res"]
        return [{"name": n, "us": us, "ts": us * i} for i, n in enumerate(names)]

    def label_halves(self, events: list[dict[str, Any]], config: Any) -> None:
        half = -1
        for e in events:
            half += e["name"] == "attn_res"
            e["half"] = f"layer {half // 2} {'MoE' if half % 2 else 'attention (KDA)'}" if half < 4 else "head"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    vllm = install(monkeypatch, tmp_path)
    vllm.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    info = tmp_path / "site" / "kgen_vllm_plugin-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kgen-vllm-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nkgen = kgen.serve.vllm:register\n")
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "")  # so that what Engines sets is undone
    monkeypatch.delenv("VLLM_SSM_CONV_STATE_LAYOUT")
    return tmp_path


def proven(place: Path, builder: Builder, seconds: float = 600) -> dict[str, Any]:
    a = SimpleNamespace(
        out=place, set=place, ops=None, batches=[1, 8], seconds=seconds, more=30, rounds=2, wait=None, damage=False
    )
    engines = Engines(builder, builder.options, 0)
    proof(a, engines, Results(place / "one.json"))  # type: ignore[arg-type]
    found: dict[str, Any] = json.loads((place / "one.json").read_text())
    return found


def test_a_whole_run_holds_every_part(place: Path) -> None:
    found = proven(place, Builder(place))
    assert found["isolation"] == found["trigger"] == [] and found["done"] is True
    assert found["plugin"].startswith("registered")
    same = {"ratio": 2.0, "least": 2.0, "greatest": 2.0}
    assert found["times"]["8"]["KDA+MoE"] == {"stock": 40.0, "on": 20.0, **same}
    assert found["stock_repeats"] == {"1": True, "8": True}
    assert found["conv_states"] == {"stock": [[24, 3]], "on": [[24, 3]]}
    assert found["times"]["1"]["rounds"] == 2 and {r["openers"] for r in found["turns"]} == {5}
    logits = found["logits"]
    assert logits["stock_again"]["max"] == logits["promoted_against_stock_8"]["max"] == 0
    assert logits["stock_against_itself_in_another_batch"]["max"] == pytest.approx(7e-3 / 1.008, rel=1e-3)
    assert logits["promoted_against_stock_8"]["steps"] == 513 and set(logits["within"].values()) == {1.0}
    assert found["churn"]["promoted_against_stock"] == {"requests": 24, "equal": 24, "common_head": 1}


def test_kernels_that_differ_more_than_stock_from_itself_are_told(place: Path) -> None:
    found = proven(place, Builder(place, noise=1e-2))
    assert found["logits"]["promoted_against_stock_8"]["median"] > 0.1 and set(found["logits"]["within"].values()) == {
        0.0
    }


def test_a_part_that_fails_leaves_the_others(place: Path) -> None:
    builder = Builder(place)
    built: list[int] = []
    stock_engine = builder.build_engine

    def third_fails(keywords: dict[str, Any], stall: float) -> Any:
        built.append(1)
        if len(built) == 3:
            raise RuntimeError("no memory")
        return stock_engine(keywords, stall)

    builder.build_engine = third_fails  # type: ignore[method-assign]
    found = proven(place, builder)
    assert found["isolation"] == {"failed": "RuntimeError: no memory"} and found["done"] and found["times"]


def test_a_trace_without_the_promoted_kernels_is_told(place: Path) -> None:
    assert "promoted launched 0 times" in proven(place, Builder(place, record=False))["trigger"][0]


def test_tokens_are_forced_only_where_the_plan_has_as_many_rows() -> None:
    model, kept = Model(0.0), list[torch.Tensor]()
    plan = torch.tensor([[7, 3], [1, 9]])
    with forced(model, plan, kept):
        assert model.compute_logits(model.embed[:3]).argmax(-1).tolist() != [7, 3, 7]
        assert [model.compute_logits(model.embed[:2]).argmax(-1).tolist() for _ in plan] == plan.tolist()
        free = model.compute_logits(model.embed[:2])
    assert torch.equal(kept[0], free) and torch.equal(kept[1], model.compute_logits(model.embed[:2]))


def test_distances_are_those_of_rows() -> None:
    want = torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]])
    got = torch.tensor([[[3.0, 4.0]], [[1.0, 2.0]]])
    assert distance(got, want) == pytest.approx(
        {"steps": 2, "rows": 1, "median": 0.0, "p99": 0.495, "max": 0.5, "median_of_the_last_64_steps": 0.0}
        | {"same_choice": 1.0}
    )


def test_spans_heads_and_medians() -> None:
    events = [{"half": h, "ts": t, "us": 5.0} for h, t in (("layer 0 attention", 0.0), ("layer 0 MLP", 20.0))]
    events += [{"half": "layer 1 MoE", "ts": 40.0, "us": 5.0}]
    assert layer_spans(events, CONFIG) == {"KDA+dense": 25.0, "KDA+MoE": 20.0, "sum": 45.0}
    events += [{"half": "layer 1 attention", "ts": 21.0, "us": 8.0}, {"half": "head", "ts": 46.0, "us": 9.0}]
    assert layer_spans(events, CONFIG) == {"KDA+dense": 25.0, "KDA+MoE": 20.0, "sum": 45.0}  # launched early, no more
    assert heads([[1, 2], [1, 3]], [[1, 2], [1, 2]]) == {"requests": 2, "equal": 1, "common_head": 0.75}
    rounds = [
        {"round": n, "batch": 1, "side": s, "spans": {"sum": v}, "host_step_us": 10 * v}
        for n, s, v in ((0, "stock", 6.0), (1, "stock", 8.0), (1, "on", 2.0), (0, "on", 5.0), (2, "on", 3.5))
    ]  # a run that is cut may lack one side of a round
    assert summary(rounds)["1"]["sum"] == {"stock": 7.0, "on": 3.5, "ratio": 2.0, "least": 1.2, "greatest": 4.0}
    assert summary(rounds)["1"]["host_step_us"]["stock"] == 70.0 and summary(rounds)["1"]["rounds"] == 3
    assert summary(rounds[:2]) == {}


def test_damage_wants_stock_tokens_and_exactly_one_line(place: Path) -> None:
    kernels = place / "set"
    (kernels / "objects").mkdir(parents=True)
    (kernels / "objects" / "a.o.xz").write_bytes(b"0123456789")
    (kernels / "manifest.json").write_text("{}")

    def outcome(noise: float) -> dict[str, Any]:
        builder = Builder(place, noise)
        damage(kernels, place, Engines(builder, builder.options, 0), Results(place / "damage.json"), 1)
        found: dict[str, Any] = json.loads((place / "damage.json").read_text())
        return found

    silent = outcome(0.0)["no manifest"]
    assert silent["equal_tokens"] and silent["lines"] == 0 and not silent["ok"]  # this engine says nothing
    assert not outcome(-0.5)["no manifest"]["equal_tokens"]
    assert (kernels / "objects" / "a.o.xz").read_bytes() == b"0123456789"


def test_both_sides_keep_states_as_kda_core_needs_them_unless_told_otherwise(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(place)
    Engines(builder, builder.options, 0)
    assert os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "SD")
    Engines(builder, builder.options, 0)
    assert os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] == "SD"
