"""Each seat: the model's numbers stay, the kernel runs in every layer, and an instance is left as it was found."""

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import vllm_standin
from support.vllm_standin import HIDDEN, LATENT, LAYERS, STEP, KimiLinearForCausalLM, drawn, install
from support.vllm_standin_ops import small
from torch import nn

from kgen.contract import Role, Values, relative_l2
from kgen.ops import REGISTRY
from kgen.serve import Served
from kgen.serve.vllm.kernels import Call, Kernels, fitting_dims, trial, weight_shapes
from kgen.serve.vllm.record import Record
from kgen.serve.vllm.seats import OPS, SEATS, sites, states_unfit


def kernel(op: str, tokens: int) -> Served:
    """A launcher that behaves as a kernel does: writes in place at its own count, and NaN where rows are padding."""
    contract = REGISTRY.get(op)
    problem = contract.problem(small(op), tokens, "sm_90a")
    stock = contract.stock(problem)

    def run(values: Values) -> None:
        rows = next(values[name] for name in ("m", "x", "parts", "p", "delta", "y") if name in values)
        padding = (rows == 0).all(-1).flatten()  # type: ignore[union-attr]  # a tensor, as all below
        states = {t.name for t in contract.present(problem) if t.role is Role.STATE}
        for name, result in stock(values).items():
            garbage = float("nan") if result.is_floating_point() else -7
            kept = result if name in states else result.masked_fill(padding[:, None], garbage)
            values[name].copy_(kept)  # type: ignore[union-attr]

    return Served(contract, problem, run, "", None, dict)


class Seated:
    """A model with kernels of one op in its seats."""

    def __init__(self, op: str, bins: tuple[int, ...] = (1, 8, 16)) -> None:
        self.model = KimiLinearForCausalLM(vllm_config=None)
        self.record, self.decoding = Record(), True
        kernels = Kernels(REGISTRY.get(op), small(op), {b: kernel(op, b) for b in bins})
        self.found = sites(self.model, [op])[op]
        self.before = {id(m): dict(vars(m)) for m in self.owners()}
        self.undo = [
            SEATS[op].take(s, Call(kernels, s.weights, lambda: self.decoding, self.record.note)) for s in self.found
        ]

    def owners(self) -> list[object]:
        routers = [m.router for m in self.model.modules() if hasattr(m, "router")]
        return [*self.model.modules(), *routers]

    def run(self, tokens: int) -> torch.Tensor:
        return run(self.model, tokens)


def run(model: nn.Module, tokens: int) -> torch.Tensor:
    with torch.inference_mode():
        out: torch.Tensor = model(drawn((tokens, HIDDEN), 7).data * HIDDEN**0.5, torch.arange(tokens))
    return out


@pytest.fixture(autouse=True)
def beside_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)


STOCK = KimiLinearForCausalLM(vllm_config=None)


@functools.cache
def stock(tokens: int) -> torch.Tensor:
    return run(STOCK, tokens)


def test_the_seats_are_those_of_the_table() -> None:
    found = sites(STOCK, OPS)
    assert {op: [s.layer for s in at] for op, at in found.items()} == LAYERS and tuple(LAYERS) == OPS


@pytest.mark.parametrize("op", OPS)
def test_every_seat_has_the_weights_of_its_contract(op: str) -> None:
    for site in sites(STOCK, [op])[op]:
        shapes = {name: tuple(w.shape) for name, w in site.weights().items()}
        assert shapes == weight_shapes(REGISTRY.get(op), small(op))
        assert fitting_dims(REGISTRY.get(op), shapes) == [small(op)]


@pytest.mark.parametrize(("op", "tokens"), [(op, n) for op in OPS for n in (1, 12) if (op, n) != ("attn_res", 12)])
def test_a_kernel_runs_in_every_layer_and_the_numbers_stay(op: str, tokens: int) -> None:
    seated = Seated(op)
    assert relative_l2(seated.run(tokens), stock(tokens)) < 5e-3
    assert seated.record.counts() == {str(tokens): {op: {"promoted": len(LAYERS[op]), "stock": {}}}}


@pytest.mark.parametrize(
    "op", ["kda_in_proj", "oproj_partial", "moe_latent_down", "moe_shared", "moe_tail", "dense_mlp"]
)
def test_the_stock_product_is_not_computed_beside_the_kernel(op: str) -> None:
    def calls(model: nn.Module) -> int:
        methods = [getattr(m, "quant_method", None) for m in model.modules()]
        return sum(m.calls for m in methods if m is not None)

    plain = KimiLinearForCausalLM(vllm_config=None)
    run(plain, 8)
    seated = Seated(op)
    seated.run(8)
    saved = len(LAYERS[op]) * (2 if op in ("moe_shared", "dense_mlp") else 1)
    assert calls(seated.model) == calls(plain) - saved


@pytest.mark.parametrize("op", OPS)
def test_outside_of_a_decode_graph_everything_is_stock_bit_for_bit(op: str) -> None:
    seated = Seated(op)
    seated.decoding = False
    assert torch.equal(seated.run(8), stock(8))
    assert seated.record.counts() == {} and seated.record.outside == {op: len(LAYERS[op])}


@pytest.mark.parametrize(("tokens", "reason"), [(2, "no kernel for 2 tokens"), (65, "more than 64 tokens")])
@pytest.mark.parametrize("op", ["kda_in_proj", "mla_in_proj", "moe_router", "moe_shared", "moe_tail"])
def test_counts_without_a_kernel_are_stock_bit_for_bit_with_a_reason(op: str, tokens: int, reason: str) -> None:
    seated = Seated(op)
    assert torch.equal(seated.run(tokens), stock(tokens))
    assert seated.record.counts() == {str(tokens): {op: {"promoted": 0, "stock": {reason: len(LAYERS[op])}}}}


def test_rows_of_residuals_are_never_padded() -> None:
    seated = Seated("attn_res")
    assert torch.equal(seated.run(12), stock(12))
    reason = "its state has no rows to pad 12 tokens to 16"
    assert seated.record.counts()["12"]["attn_res"] == {"promoted": 0, "stock": {reason: 5}}


def test_a_residual_of_another_number_of_blocks_is_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_standin, "SLOTS", 3)
    seated = Seated("attn_res")
    seated.run(8)
    assert list(seated.record.counts()["8"]["attn_res"]["stock"]) == ["needs 2 slots, contiguous (are [8, 3, 256])"]


def test_states_in_vllms_default_order_are_left_to_the_stock_kernel() -> None:
    seated = Seated("kda_core")
    attention = seated.model.model.layers[0].self_attn
    attention.begin(8)
    conv, state = attention.kv_cache
    attention.kv_cache = (conv.transpose(1, 2).contiguous(), state)
    step = STEP[attention.prefix]
    assert "VLLM_SSM_CONV_STATE_LAYOUT=DS" in states_unfit(attention, step, 8)
    attention.kv_cache = (conv, state)
    assert states_unfit(attention, step, 8) == ""
    for change in ({"num_prefills": 1}, {"num_spec_decodes": 1}, {"num_actual_tokens": 7}):
        assert states_unfit(attention, SimpleNamespace(**{**vars(step), **change}), 8) != ""


@pytest.mark.parametrize("op", OPS)
def test_a_seat_that_is_given_up_leaves_every_instance_as_it_was(op: str) -> None:
    seated = Seated(op)
    taken = {id(m): dict(vars(m)) for m in seated.owners()}
    assert taken != seated.before
    for undo in seated.undo:
        undo()
    assert {id(m): dict(vars(m)) for m in seated.owners()} == seated.before
    assert torch.equal(seated.run(8), stock(8)) and seated.record.counts() == {}


def test_no_class_is_changed_by_a_seat() -> None:
    classes = {type(m) for m in STOCK.modules()}
    before = {c: dict(vars(c)) for c in classes}
    for op in OPS:
        Seated(op).run(8)
    assert {c: dict(vars(c)) for c in classes} == before


def test_a_product_with_a_bias_is_left_to_the_stock_method() -> None:
    seated = Seated("oproj_partial")
    linear = seated.model.model.layers[0].self_attn.o_proj
    linear.bias = drawn((HIDDEN,), 3)
    seated.run(8)
    assert seated.record.counts()["8"]["oproj_partial"]["promoted"] == len(LAYERS["oproj_partial"]) - 1


def test_the_method_in_a_seat_is_the_stock_one_in_all_else() -> None:
    linear = Seated("kda_in_proj").model.model.layers[0].self_attn.in_proj_qkvgfab
    linear.quant_method.apply(linear, drawn((65, HIDDEN), 1).data)
    assert linear.quant_method.calls == 1
    with pytest.raises(AttributeError):
        linear.quant_method.unheard_of  # noqa: B018


def test_weights_are_looked_up_at_each_call() -> None:
    seated = Seated("moe_shared")
    first = seated.run(8).clone()
    down = seated.model.model.layers[1].block_sparse_moe.shared_experts.down_proj
    down.weight = nn.Parameter(torch.zeros_like(down.weight), requires_grad=False)
    assert not torch.equal(seated.run(8), first)


def test_routing_chosen_in_a_decode_graph_is_not_used_by_a_later_step() -> None:
    seated = Seated("moe_router")
    gate = seated.model.model.layers[1].block_sparse_moe.gate
    gate(drawn((8, HIDDEN), 9).data)  # chosen, and its router never came
    seated.decoding = False
    assert torch.equal(seated.run(8), stock(8))


def test_the_end_of_a_block_that_no_sum_came_from_is_stock() -> None:
    seated = Seated("moe_tail")
    runner = seated.model.model.layers[1].block_sparse_moe.experts
    latent, shared = drawn((8, LATENT), 4).data, drawn((8, HIDDEN), 5).data
    none, summed = runner._maybe_apply_routed_scale_to_output(shared, latent)
    assert none is None and runner.apply_routed_output_transform(summed) is summed
    runner._maybe_apply_routed_scale_to_output(shared, latent)  # and its transform never came
    assert torch.equal(runner.apply_routed_output_transform(latent), runner.routed_output_transform(latent))


@pytest.mark.parametrize(
    ("shared", "fused"),
    [
        (None, torch.zeros(8, LATENT, dtype=torch.bfloat16)),
        (torch.zeros(8, HIDDEN), torch.zeros(8, LATENT, dtype=torch.bfloat16)),
        (torch.zeros(8, HIDDEN, dtype=torch.bfloat16), torch.zeros(8, HIDDEN, dtype=torch.bfloat16)),
    ],
    ids=["no shared result", "float32", "no latent"],
)
def test_results_that_are_not_the_contracts_are_summed_by_the_stock_code(shared: object, fused: torch.Tensor) -> None:
    seated = Seated("moe_tail")
    runner = seated.model.model.layers[1].block_sparse_moe.experts
    assert runner._maybe_apply_routed_scale_to_output(shared, fused) == (shared, fused)
    reason = "needs bf16 rows of the latent and of a shared expert"
    assert seated.record.counts() == {"8": {"moe_tail": {"promoted": 0, "stock": {reason: 1}}}}


def test_a_trial_draws_every_input_of_an_op_and_tells_a_kernel_that_leaves_one_out() -> None:
    (site, *_) = Seated("moe_tail").found
    right = kernel("moe_tail", 8)
    stock_op = right.op.stock(right.problem)

    def unshared(values: Values) -> None:
        shared = torch.zeros_like(values["shared"])  # type: ignore[arg-type]  # a tensor, as the output
        values["delta"].copy_(stock_op({**values, "shared": shared})["delta"])  # type: ignore[union-attr]

    assert trial(right, site.weights, "cpu") == ""
    wrong = Served(right.op, right.problem, unshared, "", None, dict)
    assert trial(wrong, site.weights, "cpu").startswith("delta is 0.")
