"""vLLM 0.33's own classes with the plugin, on a CPU: a process that prints what came out, as JSON.

    PYTHONPATH=<vLLM, its imports, kgen's entry point> python -P vllm_real.py SET EMPTY_FOLDER

vLLM's plugin loader, registry and configuration, its model of the architecture at the small sizes with every layer, its
model state, the guards, a real set's objects, the record, and every seat beside the stock call of the very layer. Stood
in for, because there is no GPU: CUDA streams and events, the choice of kernels for attention and experts (none of them
runs), caches, and who says that a step is captured. Not shown: a forward of the model, graphs, the scheduler.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
from support.vllm_real_states import recurrence, residuals
from support.vllm_standin_ops import WHOLE, small

TOKENS = 8
MODEL: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "head_dim": 128,
    "intermediate_size": 512,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 64,
    "num_shared_experts": 2,
    "routed_expert_hidden_size": 128,
    "latent_moe_use_norm": True,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "use_grouped_topk": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "num_nextn_predict_layers": 0,
    "vocab_size": 512,
    "num_hidden_layers": 4,
    "num_experts": 16,
    "num_experts_per_token": 4,
    "attn_res_block_size": 2,
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
        "kda_layers": [1, 3, 4],
        "full_attn_layers": [2],
    },
}


class NoDevice:
    """In the place of what needs a GPU and is not used here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.is_monolithic = lambda *a: False

    def record(self, *args: Any) -> None: ...

    def wait(self, *args: Any) -> None: ...


def stand_in() -> None:
    """CUDA's streams, and vLLM's choice of attention and expert kernels for a platform that it does not know."""
    torch.cuda.Event, torch.cuda.Stream = NoDevice, NoDevice  # type: ignore[misc,assignment]
    import vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method as experts
    import vllm.v1.attention.backends.fa_utils as flash
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    platform.num_compute_units = classmethod(lambda *a, **k: 132)
    platform.get_attn_backend_cls = classmethod(
        lambda *a, **k: "vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend"
    )
    flash.compile_flash_attn_varlen_func_from_specs = None
    experts.select_unquantized_moe_backend = lambda moe_config: (experts.UnquantizedMoeBackend.TRITON, NoDevice())
    import vllm.models.kimi_k3.nvidia.mla as mla

    mla.get_mla_prefill_backend = lambda config: lambda *a, **k: NoDevice()


def configured(folder: Path, additional: dict[str, Any]) -> Any:
    from vllm.config import CacheConfig, ModelConfig, VllmConfig
    from vllm.config.compilation import CompilationConfig, CUDAGraphMode
    from vllm.config.device import DeviceConfig

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    config = VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=256),
        device_config=DeviceConfig("cpu"),
        cache_config=CacheConfig(enable_prefix_caching=False),  # with it, a state asks for caches that are not here
        additional_config=additional,
        compilation_config=CompilationConfig(mode=0, custom_ops=["none"]),
    )
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY  # taken away where there is no GPU
    return config


def beside_stock(calls: dict[str, Callable[[], Any]], on: list[bool]) -> dict[str, list[float]]:
    """op -> relative L2 of each result of a seat's layer against the same call without the kernel."""
    from kgen.contract import relative_l2

    found = {}
    for op, call in calls.items():
        on[0] = False
        stock = call()
        on[0] = True
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (call(), stock)), strict=True)
        found[op] = [relative_l2(a, b) for a, b in pairs if a is not None]
    return found


def calls_of(model: Any, rows: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """One call of a layer for each op that a seat stands in."""
    first, second, third = model.model.layers[:3]
    attention, moe = second.self_attn, second.block_sparse_moe
    attention._apply_q_lora_attention = lambda positions, hidden_states, qkv_lora: qkv_lora  # its kernels need a GPU
    attention._gate_events = None  # and its second stream does

    latent = rows[:, : MODEL["routed_expert_hidden_size"]].contiguous()
    moe.experts._forward_entry = lambda *given: (rows.flip(0), latent)  # experts and shared expert; the rest is vLLM's

    def routed() -> Any:
        logits, _ = moe.gate(rows)
        weights, ids = moe.experts.router._compute_routing(rows, logits, torch.int32)
        order = ids.argsort(-1)  # vLLM's choice is not sorted on a CPU
        return ids.gather(1, order), weights.gather(1, order)

    return {
        "attn_res": residuals(second, third, rows),
        "kda_core": recurrence(first.self_attn, rows),
        "kda_in_proj": lambda: first.self_attn.in_proj_qkvgfab(rows),
        "mla_in_proj": lambda: attention._forward_q_lora(None, rows),
        "oproj_partial": lambda: attention.o_proj(rows),
        "moe_router": routed,
        "moe_latent_down": lambda: moe.routed_expert_down_proj(rows),
        "moe_shared": lambda: moe.shared_experts(rows),
        "moe_tail": lambda: moe.experts(latent, rows, shared_experts_input=rows),
        "dense_mlp": lambda: first.mlp(rows),
    }


def seated(model: Any, on: list[bool], note: Callable[[str, int, str], None]) -> None:
    """A kernel of every op that copies the stock op's results, in every seat."""
    from kgen.contract import Values
    from kgen.ops import REGISTRY
    from kgen.serve import Served
    from kgen.serve.vllm.kernels import Call, Kernels
    from kgen.serve.vllm.seats import OPS, SEATS, sites

    for op, at in sites(model, OPS).items():
        contract = REGISTRY.get(op)
        problem = contract.problem(small(op), TOKENS, "sm_90a")
        stock = contract.stock(problem)

        def run(values: Values, stock: Any = stock) -> None:
            for name, result in stock(values).items():
                values[name].copy_(result)  # type: ignore[union-attr]  # outputs are tensors

        kernels = Kernels(contract, small(op), {TOKENS: Served(contract, problem, run, "", None, dict)})
        for site in at:
            SEATS[op].take(site, Call(kernels, site.weights, lambda: on[0], note))


def absorbed(attention: Any) -> dict[str, dict[str, Any]]:
    """The weights that vLLM makes of kv_b_proj's for decode steps: how they lie, and whether in the same memory."""
    attention.process_weights_after_loading(torch.bfloat16)
    held = attention.kv_b_proj.weight.untyped_storage().data_ptr()
    return {
        name: {
            "shape": list(weight.shape),
            "stride": list(weight.stride()),
            "a view": weight.untyped_storage().data_ptr() == held,
        }
        for name, weight in (("w_uk", attention.W_UK_T), ("w_uv", attention.W_UV))
    }


def promoted(config: Any, model: Any, rows: torch.Tensor, capturing: list[bool]) -> dict[str, Any]:
    """The record of the model's own plan, by vLLM's model state, with the set's own objects."""
    state = model.get_model_state_cls()(config, model, None, torch.device("cpu"))
    state.initialize_kv_cache(None, None)
    capturing[0] = True
    for layer in model.model.layers[1:]:
        layer.block_sparse_moe.shared_experts(rows)
    capturing[0] = False
    state.capture_inner_cudagraphs(None, None, None, None)
    plan = model.kgen_plan
    found: dict[str, Any] = json.loads(Path(plan.settings.record).read_text())
    for op in list(plan.kernels):
        plan.give_up(op)
    return found


def main(chosen: str, folder: str) -> dict[str, Any]:
    from vllm import ModelRegistry
    from vllm.model_executor.models.registry import _ModelInfo
    from vllm.plugins import load_general_plugins

    from kgen.ops import REGISTRY

    REGISTRY.get("moe_tail").dims[WHOLE[0]] = WHOLE[1]  # type: ignore[index]  # sizes that no deployment has
    architecture = MODEL["architectures"][0]
    own = ModelRegistry.models[architecture]
    load_general_plugins()
    import kgen.serve.vllm.plan as planning
    from kgen.serve.vllm import status
    from kgen.serve.vllm.guards import config_refusals, site_refusals
    from kgen.serve.vllm.host import Host, alone
    from kgen.serve.vllm.seats import OPS, sites

    found: dict[str, Any] = {"status": status(), "cuda": torch.cuda.is_initialized()}
    stand_in()
    found["same_interfaces"] = _ModelInfo.from_model_cls(own.load_model_cls()) == _ModelInfo.from_model_cls(
        ModelRegistry.models[architecture].load_model_cls()
    )
    config = configured(Path(folder), {"kgen": {"set": chosen, "record": f"{folder}/record.json"}})
    found["config_refusals"] = [str(r) for r in config_refusals(config)]
    capturing, on = [False], [False]
    planning.serving = lambda: Host(alone, "sm_90", lambda: capturing[0], device="cpu", version="0.33.0")
    sys.modules["kgen.serve.load"].device_capability = lambda: "sm_90"  # type: ignore[attr-defined]
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(config):
        store = f"file://{folder}/ranks"
        init_distributed_environment(1, 0, distributed_init_method=store, local_rank=0, backend="gloo")
        initialize_model_parallel(1, 1)
        torch.set_default_dtype(torch.bfloat16)
        model = ModelRegistry.models[architecture].load_model_cls()(vllm_config=config, prefix="")
        torch.manual_seed(1)
        for parameter in (p for p in model.parameters() if p.is_floating_point()):
            nn.init.normal_(parameter.data, std=parameter.shape[-1] ** -0.5)
        rows = torch.randn(TOKENS, MODEL["hidden_size"])
        found["sites"] = {op: [s.layer for s in at] for op, at in sites(model, OPS).items()}
        found["site_refusals"] = [
            str(r) for at in sites(model, OPS).values() for s in at for r in site_refusals(s, "cpu")
        ]
        found["state"] = [c.__module__ for c in model.get_model_state_cls().__mro__[:2]]
        found["plan"] = promoted(config, model, rows, capturing)
        notes: list[tuple[str, int, str]] = []
        calls = calls_of(model, rows)
        seated(model, on, lambda *note: notes.append(note))
        found["errors"] = beside_stock(calls, on)
        found["absorbed"] = absorbed(model.model.layers[1].self_attn)
        found["ran"] = sorted({op for op, _, reason in notes if not reason})
    return found


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"  # as kda_core's seat needs it
    print("found " + json.dumps(main(*sys.argv[1:3])))
