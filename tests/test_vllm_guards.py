"""Every row of the guards' tables: it holds for a plain deployment, and refuses with its need what it is there for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.vllm_standin import KimiLinearForCausalLM, Mode, configuration, with_whole_blocks
from torch import nn

from kgen.serve.vllm.guards import CONFIG, SITE, Refusal, Stage, cache_refusals, config_refusals, message, site_refusals
from kgen.serve.vllm.seats import OPS, Site, sites

Change = Callable[[Any], object]
small_sizes = pytest.fixture(autouse=True)(with_whole_blocks)


def put(path: str, value: object) -> Change:
    """Sets the attribute at a dotted path."""

    def change(subject: Any) -> None:
        *way, last = path.split(".")
        for name in way:
            subject = getattr(subject, name)
        setattr(subject, last, value)

    return change


CONFIGS: dict[str, list[Change]] = {
    "Model Runner V2": [put("use_v2_model_runner", False)],
    "a bf16 model": [put("model_config.dtype", torch.float16), put("model_config.dtype", torch.float32)],
    "pipeline parallel size 1": [put("parallel_config.pipeline_parallel_size", 2)],
    "data parallel size 1": [put("parallel_config.data_parallel_size", 8)],
    "no expert parallelism": [put("parallel_config.enable_expert_parallel", True)],
    "no dual-batch overlap": [put("parallel_config.use_ubatching", True)],
    "no sleep mode": [put("model_config.enable_sleep_mode", True)],
    "no LoRA": [put("lora_config", SimpleNamespace())],
    'decode_backend "auto"': [put("additional_config", {"decode_backend": "latency_specialized"})],
    "no torch.compile of the whole model": [
        put("compilation_config.mode", SimpleNamespace(name="STOCK_TORCH_COMPILE"))
    ],
    "FULL CUDA graphs of decode steps and of no others (FULL_DECODE_ONLY or FULL_AND_PIECEWISE)": [
        put("compilation_config.cudagraph_mode", Mode("NONE", "NONE")),
        put("compilation_config.cudagraph_mode", Mode("PIECEWISE", "PIECEWISE")),
        put("compilation_config.cudagraph_mode", Mode("FULL", "FULL")),
        put("compilation_config.cudagraph_mode", None),
    ],
}


def test_a_plain_deployment_is_refused_nothing() -> None:
    assert config_refusals(configuration()) == []
    piecewise = configuration()
    piecewise.compilation_config.cudagraph_mode = Mode("FULL", "PIECEWISE")
    assert config_refusals(piecewise) == []


def test_every_row_of_the_configuration_has_a_case_here() -> None:
    assert {need for need, _ in CONFIG} == {*CONFIGS, "no batch invariance"}


@pytest.mark.parametrize(("need", "change"), [(n, c) for n, changes in CONFIGS.items() for c in changes])
def test_a_deployment_that_nobody_has_tried_is_refused(need: str, change: Change) -> None:
    config = configuration()
    change(config)
    assert [str(r) for r in config_refusals(config)] == [f"every op: needs {need} (configuration)"]


@pytest.mark.parametrize(("value", "refused"), [("1", 1), ("0", 0), ("", 0)])
def test_batch_invariance_is_read_where_vllm_reads_it(
    monkeypatch: pytest.MonkeyPatch, value: str, refused: int
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", value)
    assert len(config_refusals(configuration())) == refused


def test_what_cannot_be_told_is_refused() -> None:
    config = configuration()
    del config.parallel_config.use_ubatching
    assert [r.reason for r in config_refusals(config)] == ["needs no dual-batch overlap"]
    assert len(config_refusals(SimpleNamespace(additional_config={}))) == len(CONFIG) - 2  # environment, own settings


SITES: dict[tuple[str, str], Change] = {
    ("moe_shared", "the contract's SiTU"): put("act_fn.beta", 1.0),
    ("dense_mlp", "the contract's SiTU"): put("act_fn.linear_beta", None),
    ("moe_shared", "no sharding of its MLP over a sequence"): put("shard_sequence_parallel", True),
    ("dense_mlp", "no sharding of its MLP over a sequence"): put("shard_sequence_parallel", True),
    ("moe_shared", "no GEMM fused with an all-reduce"): put("gemm_rs_ar", object()),
    ("dense_mlp", "no GEMM fused with an all-reduce"): put("gemm_rs_ar", object()),
    ("oproj_partial", "no GEMM fused with an all-reduce"): put("gemm_rs_ar", object()),
    ("moe_shared", "no sum over ranks within it"): put("down_proj.reduce_results", True),
    ("dense_mlp", "no sum over ranks within it (tensor parallel size 1)"): put("down_proj.tp_size", 8),
    ("kda_in_proj", "no overlapped projections"): put("_projection_overlap_max_tokens", 16),
    ("attn_res", "rows of its own on this rank (no sequence shards)"): put("use_sequence_parallel", True),
    ("kda_core", "no GEMM fused with an all-reduce"): put("gemm_rs_ar", object()),
    ("kda_core", "no overlapped projections"): put("_projection_overlap_max_tokens", 16),
    ("kda_core", "steps of one token a request"): put("num_spec", 2),
    ("kda_core", "a bounded gate and a sigmoid norm"): put("gate_lower_bound", None),
    ("kda_core", "convolution states channel by channel (VLLM_SSM_CONV_STATE_LAYOUT=DS)"): put(
        "get_state_shape", lambda: ((3, 768), (2, 128, 128))
    ),
    ("mla_in_proj", "an output gate in the projection"): put("q_lora_rank", None),
    ("mla_in_proj", "the calls that its seat replaces"): put("_forward_q_lora", None),
    ("moe_router", "the calls that its seat replaces"): put("experts.router", SimpleNamespace(top_k=4)),
    ("moe_router", "no expert kernel that routes by itself"): put("use_mega_moe", True),
    ("moe_router", "no expert kernel that routes"): put("experts.routed_experts.quant_method.is_monolithic", True),
    ("moe_router", "one group of experts"): put("num_expert_group", 8),
    ("moe_router", "sigmoid scores"): put("moe_router_activation_func", "softmax"),
    ("moe_router", "renormalised weights, factor 1"): put("routed_scaling_factor", 2.5),
    ("moe_router", "a router that chooses by group"): put(
        "experts.router", SimpleNamespace(top_k=4, _compute_routing=print)
    ),
    ("moe_tail", "no sum over ranks within it (tensor parallel size 1)"): put("experts.moe_config.tp_size", 8),
    ("moe_tail", "a shared expert"): put("shared_experts", None),
    ("moe_tail", "no factor of the experts' sum"): put("experts.routed_scaling_factor", 2.5),
    ("moe_tail", "the calls that its seat replaces"): put("experts.routed_output_transform", nn.Identity()),
}


def first(op: str) -> Site:
    found: Site = sites(KimiLinearForCausalLM(vllm_config=None), [op])[op][0]
    return found


def test_every_row_of_the_layers_has_a_case_here_for_each_of_its_ops() -> None:
    assert {(op, need) for need, ops, _ in SITE for op in ops} == set(SITES)


@pytest.mark.parametrize("op", OPS)
def test_a_plain_layer_is_refused_nothing(op: str) -> None:
    assert site_refusals(first(op), "cpu") == []


@pytest.mark.parametrize(("op", "need"), SITES)
def test_a_layer_that_computes_otherwise_is_refused(op: str, need: str) -> None:
    site = first(op)
    SITES[op, need](site.owner)
    assert f"{op}: layer {site.layer}: needs {need} (loaded weights)" in map(str, site_refusals(site, "cpu"))


def quantised(site: Site) -> None:
    for module, name in site.parts.values():
        delattr(module, name)


def of_dtype(dtype: torch.dtype) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        module, name = next(iter(site.parts.values()))
        setattr(module, name, nn.Parameter(getattr(module, name).to(dtype), requires_grad=False))

    return change


def strided(site: Site) -> None:
    module, name = next(iter(site.parts.values()))
    weight = getattr(module, name)
    setattr(module, name, nn.Parameter(torch.stack([weight, weight], -1)[..., 0], requires_grad=False))


def shorter(site: Site) -> None:
    module, name = next(iter(site.parts.values()))
    setattr(module, name, nn.Parameter(getattr(module, name)[:-16].clone(), requires_grad=False))


def with_bias(site: Site) -> None:
    module, _ = next(iter(site.parts.values()))
    module.bias = nn.Parameter(torch.zeros(module.weight.shape[0]))


WEIGHTS: dict[str, tuple[Callable[[Site], None], str]] = {
    "quantised": (quantised, "needs plain weights"),
    "float16": (of_dtype(torch.float16), "contiguous (is torch.float16)"),
    "float8": (of_dtype(torch.float8_e4m3fn), "(is torch.float8_e4m3fn)"),
    "strided": (strided, "contiguous"),
    "of another size": (shorter, "needs weights of "),
    "with a bias": (with_bias, "without a bias"),
}


@pytest.mark.parametrize("what", WEIGHTS)
@pytest.mark.parametrize("op", OPS)
def test_weights_that_are_not_the_contracts_are_refused(op: str, what: str) -> None:
    change, told = WEIGHTS[what]
    site = first(op)
    change(site)
    (refusal,) = site_refusals(site, "cpu")
    assert told in refusal.reason


def test_weights_on_another_device_are_refused() -> None:
    (refusal,) = site_refusals(first("moe_shared"), "cuda")
    assert refusal.reason == "layer 1: needs w_gate_up on cuda (is on cpu)"


def test_another_number_of_chosen_experts_is_refused() -> None:
    site = first("moe_router")
    site.owner.experts.router.top_k = 8
    assert [r.reason for r in site_refusals(site, "cpu")] == ["layer 1: needs top 4 or 16 (is 8)"]


def test_a_cache_is_bound_to_the_weights_that_were_checked() -> None:
    site = first("moe_shared")
    checked = {name: tuple(w.shape) for name, w in site.weights().items()}
    assert cache_refusals(site, checked) == []
    quantised(site)
    assert [str(r) for r in cache_refusals(site, checked)] == [
        "moe_shared: layer 1: its weights are not those that were checked (KV caches)"
    ]


def test_a_message_has_every_refusal_once_and_no_line_break() -> None:
    config = configuration()
    config.lora_config, config.use_v2_model_runner = 1, False
    found = config_refusals(config)
    assert message([*found, *found]) == (
        "every op: needs Model Runner V2 (configuration); every op: needs no LoRA (configuration)"
    )


def test_layers_that_refuse_an_op_for_the_same_reason_are_named_together() -> None:
    found = [
        Refusal(Stage.WEIGHTS, op, f"layer {layer}: {why}")
        for op, layer, why in (("a", 1, "x"), ("a", 2, "x"), ("a", 3, "y: z"), ("b", 1, "x"), ("a", 1, "x"))
    ]
    assert message([*found, Refusal(Stage.WEIGHTS, "a", "8 tokens: q")]) == (
        "a: layers 1, 2: x (loaded weights); a: layer 3: y: z (loaded weights); b: layer 1: x (loaded weights); "
        "a: 8 tokens: q (loaded weights)"
    )
