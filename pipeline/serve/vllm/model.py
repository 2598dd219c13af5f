"""The class that vLLM builds in place of its own, and the model state that goes with it; both made on first use.

The class is `model.KimiLinearForCausalLM`, an attribute that is computed: importing this module needs no vLLM. It has
its parent's name, which vLLM compares with lists of its own. Not covered: another runner than Model Runner V2, which
builds no model state; a guard refuses it.
"""

import functools
from typing import Any

from kgen.serve.vllm import ARCHITECTURE, MODEL_MODULE
from kgen.serve.vllm.host import parent_class
from kgen.serve.vllm.plan import Plan, plan_for


def __getattr__(name: str) -> Any:
    if name == ARCHITECTURE:
        return subclass(parent_class())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def subclass(parent: Any) -> Any:
    """`parent` with a plan; `parent` itself on platforms whose model has no state to hook into."""
    if not hasattr(parent, "get_model_state_cls"):
        return parent

    class Model(parent):  # type: ignore[misc]  # known at run time
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            plan = plan_for(vllm_config)  # before the parent allocates anything: it may refuse
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.kgen_plan = plan

        def get_model_state_cls(self) -> Any:
            stock = super().get_model_state_cls()
            return stock if self.kgen_plan is None else state(stock)

    Model.__name__ = Model.__qualname__ = parent.__name__
    Model.__module__ = MODEL_MODULE
    return Model


@functools.cache
def state(parent: Any) -> Any:
    """`parent`, a model state, with the plan's later stages at its hooks."""

    class State(parent):  # type: ignore[misc]  # known at run time
        def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: Any) -> None:
            super().__init__(vllm_config, model, encoder_cache, device)
            language = model.get_language_model() if hasattr(model, "get_language_model") else model
            self.kgen_plan: Plan = language.kgen_plan
            self.kgen_plan.seat(language)

        def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> Any:
            done = super().initialize_kv_cache(kv_cache_config, block_tables)
            self.kgen_plan.check_caches()
            return done

        def prepare_attn(  # vLLM's own parameters, by name and in its order
            self,
            input_batch: Any,
            cudagraph_mode: Any,
            block_tables: Any,
            slot_mappings: Any,
            attn_groups: Any,
            kv_cache_config: Any,
            for_capture: bool = False,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            self.kgen_plan.prepared(for_capture)
            given = (input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups, kv_cache_config)
            return super().prepare_attn(*given, for_capture, *args, **kwargs)

        def capture_inner_cudagraphs(self, *args: Any, **kwargs: Any) -> Any:
            done = super().capture_inner_cudagraphs(*args, **kwargs)
            self.kgen_plan.captured()
            return done

    State.__name__ = State.__qualname__ = parent.__name__
    return State
