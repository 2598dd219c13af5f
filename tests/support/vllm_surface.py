"""What the plugin uses of vLLM 0.33: classes with attributes and methods, functions; and a reader of source for them.

    found = Source(files).missing(SURFACE)      # one line for each thing that is not there as it is used

`files` gives a source text by its path in the package. A class's attributes are those that its methods or its body
assign, its fields, its properties, and those of the bases named in the entry. Not covered: what the values are.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MODEL = "vllm/models/kimi_k3/nvidia/model.py"
LINEAR = "vllm/model_executor/layers/linear.py"
GPU = "vllm/v1/worker/gpu"


@dataclass(frozen=True)
class Used:
    """One class. `methods`: name -> parameters without self, as far as calls rely on them; `standin`: its likeness."""

    file: str
    name: str
    attributes: tuple[str, ...] = ()
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bases: tuple[tuple[str, str], ...] = ()
    standin: str = ""


SURFACE = (
    Used(
        MODEL,
        "KimiLinearForCausalLM",
        ("model",),
        {"__init__": ("vllm_config", "prefix"), "get_model_state_cls": ()},
        standin="KimiLinearForCausalLM",
    ),
    Used(MODEL, "KimiLinearModel", ("layers",), standin="KimiLinearModel"),
    Used(
        MODEL,
        "KimiDecoderLayer",
        (
            *("is_moe_layer", "self_attn", "block_sparse_moe", "mlp", "use_attn_res", "use_sequence_parallel"),
            *("is_block_write_layer", "block_write_idx", "prev_valid_blocks", "input_layernorm"),
            *("post_attention_layernorm", "self_attention_res_norm", "self_attention_res_proj", "mlp_res_norm"),
            "mlp_res_proj",
        ),
        {
            "_pre_attn_norm": ("hidden_states", "residual", "prefix_sum"),
            "_post_attn_norm": ("hidden_states", "residual", "prefix_sum"),
        },
        standin="KimiDecoderLayer",
    ),
    Used(
        MODEL,
        "KimiMLP",
        ("gate_up_proj", "down_proj", "act_fn", "shard_sequence_parallel", "gemm_rs_ar"),
        {"forward": ("x",)},
        standin="KimiMLP",
    ),
    Used(
        MODEL,
        "KimiMoE",
        (
            *("gate", "shared_experts", "routed_expert_down_proj", "experts", "use_mega_moe", "num_expert_group"),
            *("topk_group", "moe_router_activation_func", "moe_renormalize", "routed_scaling_factor"),
            "routed_output_transform",
        ),
        standin="KimiMoE",
    ),
    Used(MODEL, "KimiRoutedOutputTransform", ("norm", "up_proj"), standin="KimiRoutedOutputTransform"),
    Used(
        "vllm/models/kimi_k3/nvidia/kda.py",
        "KimiK3DeltaAttention",
        (
            *(
                "in_proj_qkvgfab",
                "o_proj",
                "gemm_rs_ar",
                "_projection_overlap_max_tokens",
                "conv1d",
                "f_b_proj",
                "A_log",
            ),
            *("dt_bias", "o_norm", "local_projection_size", "conv_size", "gate_lower_bound", "use_recoverssm"),
        ),
        {"forward": ("hidden_states", "positions")},
        standin="KimiK3DeltaAttention",
    ),
    Used(
        "vllm/models/kimi_k3/nvidia/mla.py",
        "MultiHeadLatentAttention",
        (
            *("fused_qkv_a_g_proj", "o_proj", "num_local_heads", "v_head_dim", "q_lora_rank", "use_output_gate"),
            "gemm_rs_ar",
        ),
        {
            "_forward_q_lora": ("positions", "hidden_states"),
            "_apply_q_lora_attention": ("positions", "hidden_states", "qkv_lora"),
        },
        standin="MultiHeadLatentAttention",
    ),
    Used("vllm/model_executor/layers/activation.py", "SituAndMul", ("beta", "linear_beta"), standin="SituAndMul"),
    Used(
        LINEAR,
        "ReplicatedLinear",
        ("quant_method", "bias"),
        {"forward": ("x",)},
        bases=((LINEAR, "LinearBase"),),
        standin="Linear",
    ),
    Used(
        LINEAR,
        "RowParallelLinear",
        ("quant_method", "reduce_results", "tp_size", "bias"),
        {"forward": ("input_",)},
        bases=((LINEAR, "LinearBase"),),
        standin="Linear",
    ),
    Used(LINEAR, "UnquantizedLinearMethod", (), {"apply": ("layer", "x", "bias")}, standin="UnquantizedLinearMethod"),
    Used("vllm/model_executor/layers/fused_moe/router/gate_linear.py", "GateLinear", (), {"forward": ("x",)}),
    Used(
        "vllm/model_executor/layers/fused_moe/runner/moe_runner.py",
        "MoERunner",
        ("router", "routed_experts", "moe_config", "routed_scaling_factor", "routed_output_transform"),
        {
            "_maybe_apply_routed_scale_to_output": ("shared_output", "fused_output"),
            "apply_routed_output_transform": ("fused_output",),
        },
        standin="LatentMoERunner",
    ),
    Used("vllm/model_executor/layers/fused_moe/config.py", "FusedMoEConfig", ("tp_size", "ep_size")),
    Used("vllm/model_executor/layers/fused_moe/fused_moe_method_base.py", "FusedMoEMethodBase", ("is_monolithic",)),
    Used(
        "vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py",
        "GroupedTopKRouter",
        ("top_k",),
        {"_compute_routing": ("hidden_states", "router_logits", "indices_type", "input_ids")},
        bases=(("vllm/model_executor/layers/fused_moe/router/base_router.py", "BaseRouter"),),
        standin="GroupedTopKRouter",
    ),
    Used(
        "vllm/models/kimi_k3/nvidia/model_state.py",
        "KimiK3ModelState",
        (),
        {
            "__init__": ("vllm_config", "model", "encoder_cache", "device"),
            "initialize_kv_cache": ("kv_cache_config", "block_tables"),
            "prepare_attn": (
                "input_batch",
                "cudagraph_mode",
                "block_tables",
                "slot_mappings",
                "attn_groups",
                "kv_cache_config",
                "for_capture",
            ),
            "capture_inner_cudagraphs": (),
        },
        bases=((f"{GPU}/model_states/interface.py", "ModelState"),),
        standin="ModelState",
    ),
    Used("vllm/model_executor/models/registry.py", "_LazyRegisteredModel", ("module_name",), standin="Lazy"),
    Used(
        "vllm/model_executor/models/registry.py",
        "_ModelRegistry",
        ("models",),
        {"register_model": ("model_arch", "model_cls")},
        standin="ModelRegistry",
    ),
    Used(
        "vllm/config/vllm.py",
        "VllmConfig",
        (
            *("model_config", "parallel_config", "compilation_config", "lora_config", "additional_config"),
            "use_v2_model_runner",
        ),
    ),
    Used("vllm/config/model.py", "ModelConfig", ("dtype", "enable_sleep_mode")),
    Used(
        "vllm/config/parallel.py",
        "ParallelConfig",
        ("pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "use_ubatching"),
    ),
    Used("vllm/config/compilation.py", "CompilationConfig", ("mode", "cudagraph_mode")),
    Used(
        "vllm/config/compilation.py",
        "CUDAGraphMode",
        ("NONE", "PIECEWISE", "FULL"),
        {"decode_mode": (), "mixed_mode": ()},
    ),
    Used("vllm/config/compilation.py", "CompilationMode", ("STOCK_TORCH_COMPILE",)),
    Used("vllm/forward_context.py", "ForwardContext", ("cudagraph_runtime_mode", "attn_metadata")),
    Used(
        "vllm/v1/attention/backends/gdn_attn.py",
        "GDNAttentionMetadata",
        ("num_prefills", "num_spec_decodes", "num_actual_tokens", "non_spec_state_indices_tensor"),
    ),
    Used("vllm/distributed/parallel_state.py", "GroupCoordinator", ("world_size", "rank_in_group", "cpu_group")),
)
FUNCTIONS = (
    ("vllm/forward_context.py", "get_forward_context"),
    ("vllm/forward_context.py", "is_forward_context_available"),
    ("vllm/distributed/parallel_state.py", "get_tp_group"),
)


class Source:
    """Classes and functions of source texts, by path and name."""

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self._trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self._text(path), path)
        return self._trees[path]

    def classes(self, used: Used) -> list[ast.ClassDef]:
        """The class and those of its named bases that are there."""
        wanted = ((used.file, used.name), *used.bases)
        return [
            n for file, name in wanted for n in self.tree(file).body if isinstance(n, ast.ClassDef) and n.name == name
        ]

    def missing(self, used: Used) -> list[str]:
        classes = self.classes(used)
        where = f"{used.file}: {used.name}"
        if len(classes) != 1 + len(used.bases):
            return [f"{where} or one of its bases"]
        have = {name for c in classes for name in assigned(c)}
        lost = [f"{where}.{a}" for a in used.attributes if a not in have]
        for name, parameters in used.methods.items():
            found = [m for c in classes for m in c.body if isinstance(m, ast.FunctionDef) and m.name == name]
            lost += [] if found and names(found[0], len(parameters)) == parameters else [f"{where}.{name}{parameters}"]
        return lost

    def functions(self, path: str) -> set[str]:
        return {n.name for n in self.tree(path).body if isinstance(n, ast.FunctionDef)}


def names(method: ast.FunctionDef, count: int) -> tuple[str, ...]:
    """The first `count` parameters without self, keyword-only ones included."""
    arguments = [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
    return tuple([*arguments, *(a.arg for a in method.args.kwonlyargs)][:count])


def assigned(node: ast.ClassDef) -> set[str]:
    """Names that the class's body binds, and attributes of self that its methods assign."""
    found = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    for statement in ast.walk(node):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        for target in (t for top in targets for t in ast.walk(top)):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.add(target.attr)
            elif isinstance(target, ast.Name):
                found.add(target.id)
    return found
