"""What must hold before a kernel is used, as tables in the order configuration, loaded weights, KV caches.

A row is a need in words and what tells whether it holds; a row of the later tables names its ops (none: all). Whatever
is not listed here as allowed is refused: parallelism and modes that nobody has tried with seats. All refusals are kept,
so that one message can list them. Not covered: what the kernels themselves need (`kgen.serve.load` says why not).
"""

import enum
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kgen.contract import Op
from kgen.ops import REGISTRY
from kgen.ops.pack import SITU_BETA, SITU_LINEAR_BETA
from kgen.serve.vllm.kernels import fitting_dims, weight_dtypes, weight_shapes
from kgen.serve.vllm.seats import Site


class Stage(enum.StrEnum):
    CONFIG = "configuration"
    WEIGHTS = "loaded weights"
    CACHES = "KV caches"


LAYER = re.compile(r"layer (?P<layer>\d+): (?P<why>.*)")


@dataclass(frozen=True)
class Refusal:
    """`op` "": every op."""

    stage: Stage
    op: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op or 'every op'}: {self.reason} ({self.stage})"


class Refused(ValueError):
    """Start-up under `refuse`: one line with every refusal."""


def message(refusals: Iterable[Refusal]) -> str:
    """All of them in one line, each once; layers with the same reason are named together."""
    layers: dict[Refusal, list[str]] = {}
    for r in refusals:
        found = LAYER.fullmatch(r.reason)
        key = replace(r, reason=found["why"]) if found else r
        layers.setdefault(key, []).extend([found["layer"]] if found else [])
    return "; ".join(str(replace(r, reason=f"{_named(at)}{r.reason}")) for r, at in layers.items())


def _named(layers: Iterable[str]) -> str:
    at = list(dict.fromkeys(layers))
    return f"layer{'s' if len(at) > 1 else ''} {', '.join(at)}: " if at else ""


def _batch_invariant() -> bool:
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")


def _own_decode(config: Any) -> bool:
    extra = config.additional_config
    return isinstance(extra, Mapping) and extra.get("decode_backend", "auto") != "auto"


CONFIG: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("Model Runner V2", lambda c: bool(c.use_v2_model_runner)),
    ("a bf16 model", lambda c: str(c.model_config.dtype) in ("torch.bfloat16", "bfloat16")),
    ("pipeline parallel size 1", lambda c: c.parallel_config.pipeline_parallel_size == 1),
    ("data parallel size 1", lambda c: c.parallel_config.data_parallel_size == 1),
    ("no expert parallelism", lambda c: not c.parallel_config.enable_expert_parallel),
    ("no dual-batch overlap", lambda c: not c.parallel_config.use_ubatching),
    ("no sleep mode", lambda c: not c.model_config.enable_sleep_mode),
    ("no LoRA", lambda c: c.lora_config is None),
    ("no batch invariance", lambda c: not _batch_invariant()),
    ('decode_backend "auto"', lambda c: not _own_decode(c)),
    ("no torch.compile of the whole model", lambda c: c.compilation_config.mode.name != "STOCK_TORCH_COMPILE"),
    (
        "FULL CUDA graphs of decode steps and of no others (FULL_DECODE_ONLY or FULL_AND_PIECEWISE)",
        lambda c: (
            c.compilation_config.cudagraph_mode.decode_mode().name == "FULL"
            and c.compilation_config.cudagraph_mode.mixed_mode().name != "FULL"
        ),
    ),
)

MLPS = ("moe_shared", "dense_mlp")
SITE: tuple[tuple[str, tuple[str, ...], Callable[[Any], bool]], ...] = (
    (
        "the contract's SiTU",
        MLPS,
        lambda o: (o.act_fn.beta, o.act_fn.linear_beta) == (SITU_BETA, SITU_LINEAR_BETA),
    ),
    ("no sharding of its MLP over a sequence", MLPS, lambda o: not o.shard_sequence_parallel),
    ("no GEMM fused with an all-reduce", ("oproj_partial", *MLPS), lambda o: o.gemm_rs_ar is None),
    ("no sum over ranks within it", ("moe_shared",), lambda o: not o.down_proj.reduce_results),
    (
        "no sum over ranks within it (tensor parallel size 1)",
        ("dense_mlp",),
        lambda o: not o.down_proj.reduce_results or o.down_proj.tp_size == 1,
    ),
    ("no overlapped projections", ("kda_in_proj",), lambda o: o._projection_overlap_max_tokens == 0),
    ("rows of its own on this rank (no sequence shards)", ("attn_res",), lambda o: not o.use_sequence_parallel),
    ("no GEMM fused with an all-reduce", ("kda_core",), lambda o: o.gemm_rs_ar is None),
    ("no overlapped projections", ("kda_core",), lambda o: o._projection_overlap_max_tokens == 0),
    ("steps of one token a request", ("kda_core",), lambda o: o.num_spec == 0 and not o.use_recoverssm),
    (
        "a bounded gate and a sigmoid norm",
        ("kda_core",),
        lambda o: o.gate_lower_bound < 0 and o.o_norm.activation == "sigmoid",
    ),
    (
        "convolution states channel by channel (VLLM_SSM_CONV_STATE_LAYOUT=DS)",
        ("kda_core",),
        lambda o: next(iter(o.get_state_shape())) == (3 * o.local_projection_size, o.conv_size - 1),
    ),
    ("an output gate in the projection", ("mla_in_proj",), lambda o: o.use_output_gate and o.q_lora_rank is not None),
    ("the calls that its seat replaces", ("mla_in_proj",), lambda o: o._forward_q_lora and o._apply_q_lora_attention),
    (
        "the calls that its seat replaces",
        ("moe_router",),
        lambda o: o.gate.forward and o.experts.router._compute_routing,
    ),
    ("no expert kernel that routes by itself", ("moe_router",), lambda o: not o.use_mega_moe),
    (
        "no expert kernel that routes",
        ("moe_router",),
        lambda o: not o.experts.routed_experts.quant_method.is_monolithic,
    ),
    ("one group of experts", ("moe_router",), lambda o: (o.num_expert_group, o.topk_group) == (1, 1)),
    ("sigmoid scores", ("moe_router",), lambda o: o.moe_router_activation_func == "sigmoid"),
    ("renormalised weights, factor 1", ("moe_router",), lambda o: o.moe_renormalize and o.routed_scaling_factor == 1.0),
    (
        "a router that chooses by group",
        ("moe_router",),
        lambda o: type(o.experts.router).__name__ == "GroupedTopKRouter",
    ),
    (
        "no sum over ranks within it (tensor parallel size 1)",
        ("moe_tail",),
        lambda o: (o.experts.moe_config.tp_size, o.experts.moe_config.ep_size) == (1, 1),
    ),
    ("a shared expert", ("moe_tail",), lambda o: o.shared_experts is not None),
    ("no factor of the experts' sum", ("moe_tail",), lambda o: o.experts.routed_scaling_factor == 1.0),
    (
        "the calls that its seat replaces",
        ("moe_tail",),
        lambda o: (
            o.experts._maybe_apply_routed_scale_to_output
            and o.experts.apply_routed_output_transform
            and o.experts.routed_output_transform is o.routed_output_transform
        ),
    ),
)


def config_refusals(config: Any) -> list[Refusal]:
    """Every need of the configuration that does not hold; no op is at fault."""
    return [Refusal(Stage.CONFIG, "", f"needs {need}") for need, holds in CONFIG if not _holds(holds, config)]


def site_refusals(site: Site, device: str) -> list[Refusal]:
    """Every need of one site that does not hold, once its weights are loaded."""
    reasons = [f"needs {need}" for need, ops, holds in SITE if site.op in ops and not _holds(holds, site.owner)]
    reasons += [reason for reason in (_weights(REGISTRY.get(site.op), site, device), _top_k(site)) if reason]
    return [Refusal(Stage.WEIGHTS, site.op, f"layer {site.layer}: {reason}") for reason in reasons]


def cache_refusals(site: Site, checked: Mapping[str, tuple[int, ...]]) -> list[Refusal]:
    """What binding a cache may have changed: the weights are those that were checked. States are looked at in each call
    (`seats.states_unfit`)."""
    if _holds(lambda s: {name: tuple(w.shape) for name, w in s.weights().items()} == dict(checked), site):
        return []
    return [Refusal(Stage.CACHES, site.op, f"layer {site.layer}: its weights are not those that were checked")]


def _holds(check: Callable[[Any], bool], subject: Any) -> bool:
    """A row that cannot be told does not hold: an attribute is gone, or has become another thing."""
    try:
        return bool(check(subject))
    except (AttributeError, TypeError, LookupError):
        return False


def _weights(op: Op, site: Site, device: str) -> str:
    try:
        weights = site.weights()
    except AttributeError:
        return "needs plain weights (these are quantised, or missing)"
    dtypes = weight_dtypes(op)
    for name, weight in weights.items():
        module, _ = site.parts[name]
        if weight.dtype != dtypes[name] or not weight.is_contiguous():
            return f"needs {name} in {dtypes[name]}, contiguous (is {weight.dtype})"
        if weight.device.type != device:
            return f"needs {name} on {device} (is on {weight.device.type})"
        if getattr(module, "bias", None) is not None:
            return f"needs {name} without a bias"
    shapes = {name: tuple(w.shape) for name, w in weights.items()}
    if fitting_dims(op, shapes):
        return ""
    known = " or ".join(str(list(weight_shapes(op, dims).values())) for dims in op.dims)
    return f"needs weights of {known} (are {list(shapes.values())})"


def _top_k(site: Site) -> str:
    if site.op != "moe_router":
        return ""
    wanted = {d["top_k"] for d in REGISTRY.get(site.op).dims.values()}
    found = getattr(site.owner.experts.router, "top_k", None)
    return "" if found in wanted else f"needs top {' or '.join(map(str, sorted(wanted)))} (is {found})"
