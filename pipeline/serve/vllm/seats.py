"""Where an op sits in vLLM's layers: which module calls it, where its weights lie, how a seat is taken and given up.

A seat is an attribute of one module instance: a `forward`, a `quant_method`, or a method that a layer calls on itself.
vLLM's classes and modules stay as they are. Weights are looked up at each call, as the stock path does. Taking a seat
returns what undoes it.

| op | called by | seat |
|---|---|---|
| moe_shared, dense_mlp | the MLP module | its `forward` |
| kda_in_proj, oproj_partial, moe_latent_down | a linear layer | its `quant_method` |
| mla_in_proj | the attention layer, which runs the gate rows on a stream of their own | its `_forward_q_lora` |
| moe_router | the gate, and the router that chooses from its logits | `forward` and `_compute_routing` |
| attn_res | the decoder layer, before and after its attention | its `_pre_attn_norm` and `_post_attn_norm` |
| kda_core | the attention layer, with the states of its own cache | its `forward` |
| moe_tail | the experts' runner, behind the experts and the shared expert; one rank | what scales and then transforms |

attn_res: calls that add a pending row. The embedding's, and those behind the attention of a layer that starts a block,
have none and stay stock. kda_core: steps of one new token a request; its convolution states lie channel by channel
(`VLLM_SSM_CONV_STATE_LAYOUT=DS`), vLLM's default order is the other.

Not covered: mla_q and mla_out_gate (vLLM keeps their absorbed weights as views of kv_b_proj's, in another order than
the kernels read), mla_kv_append (vLLM writes the row in the kernel that also builds the query), lm_head_argmax (logits
are computed outside of the graphs), and whether a seat may be taken (`guards`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kgen.serve.vllm.host import attention_metadata
from kgen.serve.vllm.kernels import Call

Undo = Callable[[], None]
Part = tuple[Any, str]  # a module, and the attribute that holds a weight


@dataclass(frozen=True)
class Site:
    """One use of an op in a model. `owner` is the module that the op's call belongs to."""

    op: str
    layer: int
    owner: Any
    parts: Mapping[str, Part]

    def weights(self) -> dict[str, torch.Tensor]:
        """Weight name -> plain tensor without dimensions of one entry. Raises AttributeError where a layer holds none
        by that name (quantised)."""
        return {name: getattr(module, attribute).data.squeeze() for name, (module, attribute) in self.parts.items()}


@dataclass(frozen=True)
class Seat:
    find: Callable[[Any], Iterator[tuple[Any, Mapping[str, Part]]]]
    take: Callable[[Site, Call], Undo]


def sites(model: Any, ops: Sequence[str]) -> dict[str, list[Site]]:
    """The uses of these ops in a language model, in the order of its layers."""
    layers = list(model.model.layers)
    return {
        op: [Site(op, i, owner, parts) for i, layer in enumerate(layers) for owner, parts in SEATS[op].find(layer)]
        for op in ops
    }


class Method:
    """A linear layer's quant_method with a kernel before it; everything else is the stock one's."""

    def __init__(self, stock: Any, call: Call, output: str) -> None:
        self._stock, self._call, self._output = stock, call, output

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        got = self._call(x) if bias is None else None
        found: torch.Tensor = self._stock.apply(layer, x, bias) if got is None else got[self._output]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def _mlp(mlp: Any) -> tuple[Any, Mapping[str, Part]]:
    return mlp, {"w_gate_up": (mlp.gate_up_proj, "weight"), "w_down": (mlp.down_proj, "weight")}


def _shared(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
    if layer.is_moe_layer and layer.block_sparse_moe.shared_experts is not None:
        yield _mlp(layer.block_sparse_moe.shared_experts)


def _dense(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
    if not layer.is_moe_layer:
        yield _mlp(layer.mlp)


def _router(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
    if layer.is_moe_layer:
        gate = layer.block_sparse_moe.gate
        yield layer.block_sparse_moe, {"w_router": (gate, "weight"), "bias": (gate, "e_score_correction_bias")}


def _linear(block: str, linear: str, weight: str) -> Callable[[Any], Iterator[tuple[Any, Mapping[str, Part]]]]:
    """Finds the owner `layer.<block>` where it has a layer by this name."""

    def find(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
        owner = getattr(layer, block, None)
        module = getattr(owner, linear, None)
        if module is not None:
            yield owner, {weight: (module, "weight")}

    return find


def _take_forward(site: Site, call: Call) -> Undo:
    stock = site.owner.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        got = call(x)
        found: torch.Tensor = stock(x) if got is None else got["y"]
        return found

    return _put(site.owner, "forward", forward)


def _take_method(output: str) -> Callable[[Site, Call], Undo]:
    def take(site: Site, call: Call) -> Undo:
        ((linear, _),) = site.parts.values()
        return _put(linear, "quant_method", Method(linear.quant_method, call, output))

    return take


def _take_query(site: Site, call: Call) -> Undo:
    attention = site.owner
    stock = attention._forward_q_lora
    gate_columns = attention.num_local_heads * attention.v_head_dim

    def forward(positions: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        got = call(hidden_states)
        if got is None:
            return stock(positions, hidden_states)
        query, gate = got["p"][:, :-gate_columns], got["p"][:, -gate_columns:]
        return attention._apply_q_lora_attention(positions, hidden_states, query), gate

    return _put(attention, "_forward_q_lora", forward)


def _take_router(site: Site, call: Call) -> Undo:
    gate, router = site.owner.gate, site.owner.experts.router
    stock_gate, stock_routing = gate.forward, router._compute_routing
    chosen: list[dict[str, torch.Tensor]] = []  # from the gate to the router of the same step
    # Until the next step: the router may run on another stream, and memory that is let go of here would be given to
    # what runs meanwhile on the gate's.
    held: list[dict[str, torch.Tensor]] = []

    def forward(x: torch.Tensor) -> Any:
        chosen.clear()
        got = call(x)
        if got is None:
            return stock_gate(x)
        chosen.append(got)
        return x.new_empty((x.shape[0], gate.weight.shape[0]), dtype=torch.float32), None  # nobody reads these logits

    def routing(hidden_states: Any, router_logits: Any, indices_type: Any, *, input_ids: Any = None) -> Any:
        if not chosen:
            return stock_routing(hidden_states, router_logits, indices_type, input_ids=input_ids)
        got = chosen.pop()
        held[:] = [got]
        return got["w"].float(), got["ids"] if indices_type is None else got["ids"].to(indices_type)

    undo_gate, undo_routing = _put(gate, "forward", forward), _put(router, "_compute_routing", routing)

    def undo() -> None:
        undo_gate()
        undo_routing()

    return undo


def _tail(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
    transform = layer.block_sparse_moe.routed_output_transform if layer.is_moe_layer else None
    if transform is not None and transform.norm is not None:
        yield layer.block_sparse_moe, {"gamma": (transform.norm, "weight"), "w_up": (transform.up_proj, "weight")}


def _take_tail(site: Site, call: Call) -> Undo:
    """The runner scales both results, transforms the routed one and adds them; a kernel does all of it in the first
    call, which then hands on no shared result, and the second finds its work done."""
    runner = site.owner.experts
    stock_scale, stock_transform = runner._maybe_apply_routed_scale_to_output, runner.apply_routed_output_transform
    norm, up = site.parts["gamma"][0], site.parts["w_up"][0]
    done: list[torch.Tensor] = []  # from the first call to the second of the same step

    def scale(shared_output: Any, fused_output: Any) -> Any:
        done.clear()
        tokens = int(fused_output.shape[0])
        columns, latent = up.weight.shape
        found = [(t.dtype, tuple(t.shape)) if torch.is_tensor(t) else None for t in (fused_output, shared_output)]
        fits = found == [(torch.bfloat16, (tokens, latent)), (torch.bfloat16, (tokens, columns))]
        served = call.chosen(tokens, "" if fits else "needs bf16 rows of the latent and of a shared expert")
        if served is None:
            return stock_scale(shared_output, fused_output)
        given = {"parts": fused_output[None], "shared": shared_output[None], "eps": norm.variance_epsilon}
        done.append(call.give(served, tokens, given)["delta"])
        return None, done[0]

    def transform(fused_output: Any) -> Any:
        return fused_output if done and fused_output is done.pop() else stock_transform(fused_output)

    undo_scale = _put(runner, "_maybe_apply_routed_scale_to_output", scale)
    undo_transform = _put(runner, "apply_routed_output_transform", transform)

    def undo() -> None:
        undo_scale()
        undo_transform()

    return undo


VECTORS = ("w_norm", "w_query", "w_out")
AttnResPart = tuple[str, str, str]  # a layer's attributes: norm of the sources, query, norm of the result
BEFORE: AttnResPart = ("self_attention_res_norm", "self_attention_res_proj", "input_layernorm")
BEHIND: AttnResPart = ("mlp_res_norm", "mlp_res_proj", "post_attention_layernorm")


def _residual(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
    """Calls with a pending row: not before the first layer, nor behind the attention of one that starts a block."""
    for names, pending in ((BEFORE, layer.prev_valid_blocks > 0), (BEHIND, not layer.is_block_write_layer)):
        if layer.use_attn_res and pending:
            yield layer, {w: (getattr(layer, n), "weight") for w, n in zip(VECTORS, names, strict=True)}


def _take_residual(site: Site, call: Call) -> Undo:
    layer = site.owner
    norm, result = site.parts["w_norm"][0], site.parts["w_out"][0]
    before = norm is getattr(layer, BEFORE[0])
    name = "_pre_attn_norm" if before else "_post_attn_norm"
    stock = getattr(layer, name)
    slots = call.kernels.op.dims[call.kernels.dims]["slots"]
    scalars = {
        "nb": layer.prev_valid_blocks,
        "write_idx": layer.block_write_idx if layer.is_block_write_layer else -1,  # behind attention never
        "eps": norm.variance_epsilon,
        "eps_out": result.variance_epsilon,
    }

    def forward(hidden_states: Any, residual: Any, prefix_sum: Any) -> Any:
        tokens = int(prefix_sum.shape[0])
        fits = residual.shape[1] == slots and prefix_sum.is_contiguous() and residual.is_contiguous()
        served = call.chosen(tokens, "" if fits else f"needs {slots} slots, contiguous (are {list(residual.shape)})")
        if served is None:
            return stock(hidden_states, residual, prefix_sum)
        given = {"prefix": prefix_sum, "delta": hidden_states, "blocks": residual, **scalars}
        return call.give(served, tokens, given)["out"], prefix_sum, residual

    return _put(layer, name, forward)


def _recurrent(layer: Any) -> Iterator[tuple[Any, Mapping[str, Part]]]:
    attention = layer.self_attn
    if hasattr(attention, "f_b_proj"):
        yield (
            attention,
            {
                "conv_w": (attention.conv1d, "weight"),
                "f_b": (attention.f_b_proj, "weight"),
                "a_log": (attention, "A_log"),
                "dt_bias": (attention, "dt_bias"),
                "w_onorm": (attention.o_norm, "weight"),
            },
        )


def states_unfit(attention: Any, step: Any, tokens: int) -> str:
    """Why a step's states cannot be a kernel's, "" if they can. Addresses in the cache move with each bind."""
    if step is None or step.num_prefills or step.num_spec_decodes or step.num_actual_tokens != tokens:
        return "not one new token for each request"
    conv, state = attention.kv_cache[:2]
    channels = 3 * attention.local_projection_size
    if conv.shape[1] != channels or conv.dtype != torch.bfloat16 or state.dtype != torch.float32:
        return "its states lie in another order or format (needs VLLM_SSM_CONV_STATE_LAYOUT=DS)"
    if any(not t[0].is_contiguous() or t.stride(0) * t.element_size() % 16 for t in (conv, state)):
        return "its states are not aligned"
    return ""


def _take_recurrent(site: Site, call: Call) -> Undo:
    attention = site.owner
    stock = attention.forward

    def forward(hidden_states: torch.Tensor, positions: torch.Tensor) -> Any:
        tokens = int(hidden_states.shape[0])
        step = attention_metadata(attention.prefix)
        served = call.chosen(tokens, states_unfit(attention, step, tokens))
        if served is None:
            return stock(hidden_states, positions)
        conv, state = attention.kv_cache[:2]
        given = {
            "p": attention.in_proj_qkvgfab(hidden_states)[0],
            "slots": step.non_spec_state_indices_tensor[:tokens],
            "conv": conv,
            "s": state,
            "lower_bound": attention.gate_lower_bound,
            "eps": attention.o_norm.eps,
        }
        return attention.o_proj(call.give(served, tokens, given)["y"])[0]

    return _put(attention, "forward", forward)


def _put(module: Any, name: str, value: Any) -> Undo:
    """Sets an attribute of one instance; what it returns leaves the instance as it was."""
    own = vars(module)
    before = (own[name],) if name in own else ()
    setattr(module, name, value)

    def undo() -> None:
        if before:
            setattr(module, name, before[0])
        else:
            delattr(module, name)

    return undo


# In the order of a decode step; votes of the ranks and everything listed to people follow it.
SEATS: Mapping[str, Seat] = {
    "attn_res": Seat(_residual, _take_residual),
    "kda_in_proj": Seat(_linear("self_attn", "in_proj_qkvgfab", "w_in"), _take_method("p")),
    "kda_core": Seat(_recurrent, _take_recurrent),
    "mla_in_proj": Seat(_linear("self_attn", "fused_qkv_a_g_proj", "w_in"), _take_query),
    "oproj_partial": Seat(_linear("self_attn", "o_proj", "w_o"), _take_method("part")),
    "moe_router": Seat(_router, _take_router),
    "moe_latent_down": Seat(_linear("block_sparse_moe", "routed_expert_down_proj", "w_latent"), _take_method("lat")),
    "moe_shared": Seat(_shared, _take_forward),
    "moe_tail": Seat(_tail, _take_tail),
    "dense_mlp": Seat(_dense, _take_forward),
}
OPS = tuple(SEATS)
