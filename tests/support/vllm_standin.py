"""A small model with the attributes of vLLM 0.33's own, served in vLLM's order of calls, on a CPU and without vLLM.

    install(monkeypatch, tmp_path)                 # modules `vllm...` and a distribution by that name
    engine = Engine().load(configuration(kgen={...})).serve((1, 8))     # model, state, caches, captured graphs
    engine.graphs[8]                               # what the captured graph of that many tokens computes

Sizes are the small model's of the contracts; attention and experts are deterministic functions of the right shapes and
mean nothing. support/vllm_surface.py lists what of vLLM's classes is used; a test holds it against vLLM's source.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.vllm_standin_ops import WHOLE, Norm, attn_res, drawn, recurrent
from torch import nn

from kgen.ops import REGISTRY
from kgen.ops.moe_shared import situ_and_mul

ARCHITECTURE = "KimiLinearForCausalLM"
HIDDEN, HEADS, HEAD_DIM, LATENT = 256, 2, 128, 128
EXPERTS, TOP_K, SHARED, DENSE = 16, 4, 128, 512
LOCAL = HEADS * HEAD_DIM
KDA_ROWS, QUERY_ROWS = 1168, 128 + 512 + 64
KINDS = ("kda", "mla", "kda", "kda")  # layer 0 has the dense MLP
BLOCK, SLOTS = 2, 2  # layers of one block of residuals; blocks
LAYERS = {  # that an op has a seat in
    "attn_res": [1, 1, 2, 3, 3],  # before attention but in layer 0, and behind it in layers that start no block
    "kda_in_proj": [0, 2, 3],
    "kda_core": [0, 2, 3],
    "mla_in_proj": [1],
    "oproj_partial": [0, 1, 2, 3],
    "moe_router": [1, 2, 3],
    "moe_latent_down": [1, 2, 3],
    "moe_shared": [1, 2, 3],
    "moe_tail": [1, 2, 3],
    "dense_mlp": [0],
}


class UnquantizedLinearMethod:
    def __init__(self) -> None:
        self.calls = 0

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        return F.linear(x, layer.weight, bias)


class Linear(nn.Module):
    def __init__(self, columns: int, rows: int, seed: int, reduce_results: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = drawn((rows, columns), seed), None
        self.quant_method: Any = UnquantizedLinearMethod()
        self.reduce_results, self.tp_size = reduce_results, 1

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.quant_method.apply(self, x, self.bias), None


class GateLinear(Linear):
    """float32 logits, as vLLM's: its product does not go through the layer's quant_method."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return F.linear(x.float(), self.weight.float()), None


class SituAndMul(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta, self.linear_beta = 4.0, 25.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return situ_and_mul(x)


class KimiMLP(nn.Module):
    def __init__(self, width: int, seed: int, reduce_results: bool) -> None:
        super().__init__()
        self.gate_up_proj = Linear(HIDDEN, 2 * width, seed)
        self.down_proj = Linear(width, HIDDEN, seed + 1, reduce_results)
        self.act_fn = SituAndMul()
        self.shard_sequence_parallel, self.gemm_rs_ar = False, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class GroupedTopKRouter:
    def __init__(self, bias: nn.Parameter) -> None:
        self.top_k, self.bias = TOP_K, bias

    def select_experts(self, hidden_states: Any, router_logits: torch.Tensor, topk_indices_dtype: Any) -> Any:
        return self._compute_routing(hidden_states, router_logits, topk_indices_dtype, input_ids=None)

    def _compute_routing(
        self, hidden_states: Any, router_logits: Any, indices_type: Any, *, input_ids: Any = None
    ) -> Any:
        scores = torch.sigmoid(router_logits)
        ids = torch.sort(scores + self.bias, dim=-1, descending=True, stable=True).indices[:, :TOP_K]
        weights = scores.gather(1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        # vLLM keeps float32; the contract's roundings here let a test ask for equal numbers
        return weights.to(torch.bfloat16).float(), ids.to(indices_type)


class KimiRoutedOutputTransform(nn.Module):
    def __init__(self, norm: Norm, up_proj: Linear) -> None:
        super().__init__()
        self.norm, self.up_proj = norm, up_proj

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.norm.weight.float()
        normed = F.rms_norm(hidden_states.float(), weight.shape, weight, self.norm.variance_epsilon)
        return self.up_proj(normed.to(torch.bfloat16))[0]


class LatentMoERunner(nn.Module):
    def __init__(self, bias: nn.Parameter, shared: KimiMLP, transform: KimiRoutedOutputTransform) -> None:
        super().__init__()
        self.router = GroupedTopKRouter(bias)
        self.routed_experts = SimpleNamespace(quant_method=SimpleNamespace(is_monolithic=False))
        self.moe_config, self.routed_scaling_factor = SimpleNamespace(tp_size=1, ep_size=1), 1.0
        self.shared = [shared]  # a module of the block above, not of this one
        self.routed_output_transform = transform

    def _maybe_apply_routed_scale_to_output(self, shared_output: Any, fused_output: Any) -> Any:
        return shared_output, fused_output

    def apply_routed_output_transform(self, fused_output: torch.Tensor) -> torch.Tensor:
        return self.routed_output_transform(fused_output)

    def forward(self, hidden_states: Any, router_logits: Any, shared_experts_input: Any) -> torch.Tensor:
        weights, ids = self.router.select_experts(hidden_states, router_logits, torch.int32)
        factor = (weights.float() * (1 + ids.float() / EXPERTS)).sum(-1, keepdim=True)
        latent = (hidden_states.float() * factor).to(torch.bfloat16)
        shared, routed = self._maybe_apply_routed_scale_to_output(self.shared[0](shared_experts_input), latent)
        routed = self.apply_routed_output_transform(routed)
        return routed if shared is None else shared + routed


class KimiMoE(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.gate = GateLinear(HIDDEN, EXPERTS, seed)
        self.gate.e_score_correction_bias = drawn((EXPERTS,), seed + 1, torch.float32)
        self.shared_experts = KimiMLP(SHARED, seed + 2, False)
        self.routed_expert_down_proj = Linear(HIDDEN, LATENT, seed + 4)
        self.routed_expert_norm, self.routed_expert_up_proj = Norm(LATENT, seed + 6), Linear(LATENT, HIDDEN, seed + 5)
        self.routed_output_transform = KimiRoutedOutputTransform(self.routed_expert_norm, self.routed_expert_up_proj)
        self.use_mega_moe, self.num_expert_group, self.topk_group = False, 1, 1
        self.moe_router_activation_func, self.moe_renormalize, self.routed_scaling_factor = "sigmoid", True, 1.0
        self.experts = LatentMoERunner(
            self.gate.e_score_correction_bias, self.shared_experts, self.routed_output_transform
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        router_logits = self.gate(hidden_states)[0]
        latent = self.routed_expert_down_proj(hidden_states)[0]
        return self.experts(latent, router_logits, hidden_states)


STEP: dict[str, SimpleNamespace] = {}  # what the step that runs holds for each attention layer


class KimiK3DeltaAttention(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.prefix = f"layers.{seed}.self_attn"
        self.in_proj_qkvgfab = Linear(HIDDEN, KDA_ROWS, seed)
        self.o_proj = Linear(LOCAL, HIDDEN, seed + 1, reduce_results=True)
        self.gemm_rs_ar, self._projection_overlap_max_tokens = None, 0
        self.f_b_proj = Linear(HEAD_DIM, LOCAL, seed + 2)
        self.conv1d = Linear(4, 3 * LOCAL, seed + 3)
        self.conv1d.weight = drawn((3 * LOCAL, 1, 4), seed + 3, torch.float32)
        self.A_log, self.dt_bias = (drawn((n,), seed + 4, torch.float32) for n in (HEADS, LOCAL))
        self.o_norm, self.gate_lower_bound = Norm(HEAD_DIM, seed + 5), -5.0
        self.local_projection_size, self.conv_size, self.num_spec, self.use_recoverssm = LOCAL, 4, 0, False
        self.kv_cache: tuple[torch.Tensor, ...] = ()

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return (3 * LOCAL, self.conv_size - 1), (HEADS, HEAD_DIM, HEAD_DIM)

    def begin(self, tokens: int) -> None:
        """One step of as many requests, from states that are the same each time."""
        conv, state = self.get_state_shape()
        self.kv_cache = (drawn((tokens + 1, *conv), 1).data, drawn((tokens + 1, *state), 2, torch.float32).data)
        slots = torch.arange(tokens, 0, -1, dtype=torch.int32)
        counts = {"num_prefills": 0, "num_spec_decodes": 0, "num_actual_tokens": tokens}
        STEP[self.prefix] = SimpleNamespace(non_spec_state_indices_tensor=slots, **counts)

    def forward(self, hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        slots = STEP[self.prefix].non_spec_state_indices_tensor
        return self.o_proj(recurrent(self, self.in_proj_qkvgfab(hidden_states)[0], slots))[0]


class MultiHeadLatentAttention(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.fused_qkv_a_g_proj = Linear(HIDDEN, QUERY_ROWS + LOCAL, seed)
        self.o_proj = Linear(LOCAL, HIDDEN, seed + 1, reduce_results=True)
        self.num_local_heads, self.v_head_dim, self.q_lora_rank = HEADS, HEAD_DIM, 128
        self.use_output_gate, self.gemm_rs_ar = True, None

    def _apply_q_lora_attention(self, positions: Any, hidden_states: Any, qkv_lora: torch.Tensor) -> torch.Tensor:
        return torch.tanh(qkv_lora[:, :LOCAL] * qkv_lora[:, -LOCAL:])

    def _forward_q_lora(self, positions: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.fused_qkv_a_g_proj.weight  # as vLLM: two products of slices, not the layer's own call
        query = F.linear(hidden_states, weight[:QUERY_ROWS])
        return self._apply_q_lora_attention(positions, hidden_states, query), F.linear(
            hidden_states, weight[QUERY_ROWS:]
        )

    def forward(self, hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out, gate = self._forward_q_lora(positions, hidden_states)
        return self.o_proj(out * torch.sigmoid(gate))[0]


class KimiDecoderLayer(nn.Module):
    def __init__(self, index: int, kind: str) -> None:
        super().__init__()
        seed = 1000 * (index + 1)
        self.self_attn = KimiK3DeltaAttention(seed) if kind == "kda" else MultiHeadLatentAttention(seed)
        self.is_moe_layer = index > 0
        if self.is_moe_layer:
            self.block_sparse_moe = KimiMoE(seed + 10)
            self.mlp: nn.Module = self.block_sparse_moe
        else:
            self.mlp = KimiMLP(DENSE, seed + 10, True)
        self.use_attn_res, self.use_sequence_parallel = True, False
        self.is_block_write_layer, self.block_write_idx = index % BLOCK == 0, index // BLOCK
        self.prev_valid_blocks = -(-index // BLOCK)
        self.self_attention_res_norm, self.mlp_res_norm = Norm(HIDDEN, seed + 20), Norm(HIDDEN, seed + 21)
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN, seed + 22), Norm(HIDDEN, seed + 23)
        self.self_attention_res_proj, self.mlp_res_proj = Linear(HIDDEN, 1, seed + 24), Linear(HIDDEN, 1, seed + 25)

    def _pre_attn_norm(self, hidden_states: Any, residual: Any, prefix_sum: Any) -> Any:
        write = self.block_write_idx if self.is_block_write_layer else -1
        vectors = self.self_attention_res_norm, self.self_attention_res_proj.weight.squeeze(0), self.input_layernorm
        return (
            attn_res(prefix_sum, hidden_states, residual, *vectors, self.prev_valid_blocks, write),
            prefix_sum,
            residual,
        )

    def _post_attn_norm(self, hidden_states: Any, residual: Any, prefix_sum: Any) -> Any:
        prefix, delta = (hidden_states, None) if self.is_block_write_layer else (prefix_sum, hidden_states)
        vectors = self.mlp_res_norm, self.mlp_res_proj.weight.squeeze(0), self.post_attention_layernorm
        blocks = self.prev_valid_blocks + self.is_block_write_layer
        return attn_res(prefix, delta, residual, *vectors, blocks, -1), prefix, residual

    def forward(self, positions: torch.Tensor, hidden_states: Any, residual: Any, prefix_sum: Any) -> Any:
        hidden_states, prefix_sum, residual = self._pre_attn_norm(hidden_states, residual, prefix_sum)
        hidden_states = self.self_attn(hidden_states=hidden_states, positions=positions)
        hidden_states, prefix_sum, residual = self._post_attn_norm(hidden_states, residual, prefix_sum)
        return self.mlp(hidden_states), prefix_sum, residual


class KimiLinearModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(KimiDecoderLayer(i, kind) for i, kind in enumerate(KINDS))
        self.prepared()

    def prepared(self) -> None: ...  # for tests that build a model with something else in it

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if hasattr(layer.self_attn, "begin"):
                layer.self_attn.begin(hidden.shape[0])
        delta, prefix, blocks = None, hidden.clone(), hidden.new_zeros(hidden.shape[0], SLOTS, HIDDEN)
        for layer in self.layers:
            delta, prefix, blocks = layer(positions, delta, blocks, prefix)
        return prefix + delta


class ModelState:
    def __init__(self, vllm_config: Any, model: nn.Module, encoder_cache: Any, device: Any) -> None:
        self.vllm_config, self.model, self.bound = vllm_config, model, 0

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        self.bound += 1

    def prepare_attn(
        self,
        input_batch: Any,
        cudagraph_mode: Any,
        block_tables: Any,
        slot_mappings: Any,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
    ) -> dict[str, Any]:
        return {"for_capture": for_capture}

    def capture_inner_cudagraphs(self, buffers: Any, block_tables: Any, attn_groups: Any, kv_cache_config: Any) -> None:
        return None


class KimiLinearForCausalLM(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.model = KimiLinearModel()

    def get_model_state_cls(self) -> type[ModelState]:
        return ModelState

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.model(hidden, positions)


class Lazy:
    """As the registry keeps a class that it has not imported."""

    def __init__(self, module_name: str, class_name: str) -> None:
        self.module_name, self.class_name = module_name, class_name

    def load(self) -> Any:
        __import__(self.module_name)
        return getattr(sys.modules[self.module_name], self.class_name)


class ModelRegistry:
    def __init__(self) -> None:
        self.models: dict[str, Lazy] = {ARCHITECTURE: Lazy("vllm.models.standin", ARCHITECTURE)}

    def register_model(self, model_arch: str, model_cls: str) -> None:
        self.models[model_arch] = Lazy(*model_cls.split(":"))


class Mode:
    """Of CUDA graphs: (decode, mixed)."""

    def __init__(self, decode: str, mixed: str) -> None:
        self.decode, self.mixed = decode, mixed

    def decode_mode(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.decode)

    def mixed_mode(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.mixed)


def configuration(**additional: Any) -> SimpleNamespace:
    """A configuration that every guard accepts."""
    return SimpleNamespace(
        additional_config=additional,
        use_v2_model_runner=True,
        lora_config=None,
        model_config=SimpleNamespace(dtype=torch.bfloat16, enable_sleep_mode=False),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, data_parallel_size=1, enable_expert_parallel=False, use_ubatching=False
        ),
        compilation_config=SimpleNamespace(mode=SimpleNamespace(name="NONE"), cudagraph_mode=Mode("FULL", "NONE")),
    )


def with_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of moe_tail that the small model has on one rank."""
    monkeypatch.setitem(REGISTRY.get("moe_tail").dims, *WHOLE)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str = "0.33.0") -> ModuleType:
    """A distribution `vllm` and the modules that the plugin asks for; returns the module `vllm`."""
    with_whole_blocks(monkeypatch)
    metadata = folder / "site" / f"vllm-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(metadata.parent))
    group = SimpleNamespace(world_size=1, rank_in_group=0, cpu_group=None)
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"ModelRegistry": ModelRegistry()},
        "vllm.models": {},
        "vllm.models.standin": {ARCHITECTURE: KimiLinearForCausalLM},
        "vllm.model_executor": {},
        "vllm.model_executor.models": {},
        "vllm.model_executor.models.registry": {"_VLLM_MODELS": {ARCHITECTURE: ("vllm.models.standin", ARCHITECTURE)}},
        "vllm.distributed": {"get_tp_group": lambda: group},
        "vllm.forward_context": {
            "is_forward_context_available": lambda: bool(STEP),
            "get_forward_context": lambda: SimpleNamespace(attn_metadata=STEP),
        },
    }
    for name, attributes in contents.items():
        module = ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["vllm"]
