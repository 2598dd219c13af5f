"""One layer on its own is the layer of the decode model; what is wrong with it is found before it is timed."""

import dataclasses
import logging
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from support.decoders import weights

from kgen.contract import Op, Role, Values
from kgen.contract.op import Registry
from kgen.gates.layer import check
from kgen.gates.layer.chain import Gathered, Lanes, OneLayer, Placed
from kgen.gates.layer.check import Refused
from kgen.gates.layer.columns import CHAIN, NO_OVERLAP, UNFUSED, Column, Tap, joined
from kgen.gates.layer.draw import Drawn, draw
from kgen.gates.layer.measure import measure
from kgen.gates.layer.points import ANY_CONTEXT, Job, Point, default_settings, points
from kgen.model.bind import OpCall, StockBinder
from kgen.model.decoder.config import KDA, MLA, config
from kgen.model.decoder.residual import Residual
from kgen.model.decoder.state import State, new_state
from kgen.model.decoder.step import DecodeStep
from kgen.ops import REGISTRY
from kgen.ops.moe_tail import MoeTail
from kgen.ops.oproj_allreduce_residual import OprojAllreduceResidual
from kgen.records import Problem

NANO = config("nano-random")
ROWS, CONTEXT = 4, 70
JOBS = {
    KDA: Job(Point("nano", KDA, 2, ANY_CONTEXT), device="cpu", repetitions=2),
    MLA: Job(Point("nano", MLA, 2, CONTEXT), device="cpu", repetitions=2),
}


class WholeTail(MoeTail):
    """The small model's on a rank without peers."""

    dims: ClassVar = {"nano": {"ranks": 1, "latent": 128, "columns": 256}}


ALONE = Registry({**REGISTRY.ops, "moe_tail": WholeTail()})


class Watch:
    """Stock ops; the values of each AttnRes before attention are kept by layer."""

    def __init__(self) -> None:
        self.before: dict[int, dict[str, torch.Tensor]] = {}

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = StockBinder().bind(op, problem, seat)

        def noted(values: Values) -> dict[str, torch.Tensor]:
            if seat.endswith(".pre"):
                kept = {n: v.clone() for n, v in values.items() if isinstance(v, torch.Tensor)}
                self.before[int(seat.split(".")[1])] = kept
            return call(values)

        return noted


def filled(seed: int) -> State:
    state = new_state(NANO, ALONE, ROWS, 1, CONTEXT, "cpu")
    gen = torch.Generator().manual_seed(seed)
    for tensor in (*state.conv.values(), *state.s.values(), *state.cache.values()):
        tensor.copy_(torch.randn(tensor.shape, generator=gen) * 0.3)
    state.lengths.copy_(torch.tensor([3, 69, 20, 64]))
    return state


@pytest.mark.parametrize("layer", [1, 3], ids=["kda", "mla"])
def test_a_layer_without_peers_gives_the_bits_of_the_decode_model(layer: int) -> None:
    watch, state = Watch(), filled(5)
    placed = Placed(**{name: getattr(filled(5), name) for name in State.__dataclass_fields__})
    step = DecodeStep(NANO, weights(), ROWS, 1, "", watch, ALONE)
    step(torch.tensor([3, 1, 4, 15]), state)
    own = {n.removeprefix(f"layers.{layer}."): t for n, t in weights().tensors.items() if f"s.{layer}." in n}
    alone = OneLayer(NANO, layer, own, ROWS, "", StockBinder(), ALONE, Lanes(), Gathered())
    given = watch.before[layer]
    delta = alone(Residual(given["prefix"], given["blocks"], given["delta"]), placed)
    assert torch.equal(delta, watch.before[layer + 1]["delta"])
    for mine, theirs in ((placed.s, state.s), (placed.conv, state.conv)):
        if layer in mine:
            assert torch.equal(mine[layer], theirs[layer])
    if (layer, 0) in state.cache:
        assert torch.equal(placed.cache[layer, 0], state.cache[layer, 0])


class AloneOut(OprojAllreduceResidual):
    dims: ClassVar = {"nano": {**OprojAllreduceResidual.dims["nano"], "ranks": 1}}


@pytest.mark.parametrize("kind", [KDA, MLA])
def test_one_op_for_projection_and_mix_gives_the_layer_of_two(kind: str) -> None:
    registry = Registry({**ALONE.ops, "oproj_allreduce_residual": AloneOut()})
    drawn = draw(JOBS[kind], registry, 0)
    found = []
    for fused in (False, True):
        model = dataclasses.replace(drawn.config, fused_oproj=fused)
        layer = OneLayer(model, drawn.layer, drawn.weights, 2, "", StockBinder(), registry, Lanes(), drawn.gathered)
        drawn.restore()
        residual = drawn.residual()
        found.append((layer(residual, drawn.state), residual.prefix, len(layer.seats.problems)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2] + 1


@pytest.mark.parametrize(("setting", "asked"), [("tp8", 0), ("tp16", 0), ("nano", 0), ("vllm-tp1", 1)])
def test_the_chain_looks_for_a_joint_kernel_on_ranks_without_peers_only(
    setting: str, asked: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(Point(setting, KDA, 1, ANY_CONTEXT), device="cpu", arch="sm_90a")
    with caplog.at_level(logging.WARNING, "kgen.serve"):
        assert not joined(job, REGISTRY)
    assert len([r for r in caplog.records if "oproj_allreduce_residual" in r.getMessage()]) == asked


def test_a_rank_with_peers_takes_what_collectives_brought_and_runs_its_own_shard() -> None:
    drawn = draw(JOBS[KDA], REGISTRY, 0)
    assert drawn.weights["moe.w_up"].shape == (128, 128)  # half of the columns
    seen: dict[str, Values] = {}

    class Seen:
        def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
            call = StockBinder().bind(op, problem, seat)

            def noted(values: Values) -> dict[str, torch.Tensor]:
                seen[op.name] = values
                return call(values)

            return noted

    brought = drawn.gathered
    layer = OneLayer(drawn.config, drawn.layer, drawn.weights, 2, "", Seen(), REGISTRY, Lanes(), brought)
    assert layer(drawn.residual(), drawn.state).shape == (2, 128)
    assert seen["moe_experts"]["lat"] is brought.latent
    assert seen["moe_tail"]["parts"] is brought.parts and seen["moe_tail"]["shared"] is brought.shared
    assert brought.parts is not None and brought.parts.shape == (2, 2, 128)


def test_recurrent_attention_is_measured_once_for_all_contexts() -> None:
    found = points(["nano"], tokens=(1, 8), contexts=(64, 4096))
    assert [p.key for p in found if p.kind == KDA] == ["nano/kda/t1/c0", "nano/kda/t8/c0"]
    assert [(p.tokens, p.context) for p in found if p.kind == MLA] == [(1, 64), (1, 4096), (8, 64), (8, 4096)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"chosen": ["tp9"]}, "no setting 'tp9'"),
        ({"chosen": ["nano"], "kinds": ["mamba"]}, "no layer of kind 'mamba'"),
        ({"chosen": ["nano"], "tokens": [9]}, "9 is not a token bin"),
        ({"chosen": ["nano"], "contexts": [0]}, "context 0 is not positive"),
    ],
)
def test_what_there_is_not_is_said_in_one_line(asked: dict[str, list[str]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        points(**asked)  # type: ignore[arg-type]


def test_all_real_widths_are_measured_on_a_gpu_and_the_small_model_on_a_cpu() -> None:
    assert default_settings("cpu") == ["nano"]
    assert set(default_settings("cuda")) == {"tp8", "tp16", "vllm-tp1"}


def built(drawn: Drawn) -> check.Built:
    tap = Tap(StockBinder())
    rows = drawn.prefix.shape[0]
    layer = OneLayer(drawn.config, drawn.layer, drawn.weights, rows, "", tap, REGISTRY, Lanes(), drawn.gathered)
    return check.Built(layer, tap)


@pytest.mark.parametrize("kind", [KDA, MLA])
def test_every_request_attends_to_the_context_and_a_step_finds_the_state_as_it_was(kind: str) -> None:
    drawn = draw(JOBS[kind], REGISTRY, 0)
    layer = built(drawn)
    first, again = (check.step(layer, drawn) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert set(first) == {"delta", "prefix", "latent", "experts", "shared"} | (
        {"core", "s", "conv"} if kind == KDA else {"value", "cache row"}
    )
    if kind == MLA:
        assert drawn.state.request_lengths().tolist() == [CONTEXT, CONTEXT]


@pytest.mark.parametrize("kind", [KDA, MLA])
def test_stock_is_as_far_from_float64_as_its_roundings_take_it(kind: str) -> None:
    drawn = draw(JOBS[kind], REGISTRY, 0)
    layer = built(drawn)
    check.step(layer, drawn)
    ids = check.chosen(layer)
    far = check.distances([check.step(layer, drawn, ids)], [check.exact(drawn, REGISTRY, "", ids)])
    assert all(1e-4 < float(rows.median()) < 2e-2 for rows in far.rows.values())  # a bf16 rounding is 1.7e-3


Change = Callable[[dict[str, torch.Tensor], int], dict[str, torch.Tensor]]


class Changed:
    """Stock ops, one of them with what it gives changed; the change hears the number of the call."""

    def __init__(self, op: str, change: Change) -> None:
        self.op, self.change = op, change

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call, made = StockBinder().bind(op, problem, seat), [0]
        if op.name != self.op:
            return call

        def changed(values: Values) -> dict[str, torch.Tensor]:
            made[0] += 1
            return self.change(dict(call(values)), made[0])

        return changed


def tile(name: str) -> Change:
    def change(got: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        value = got[name].clone()
        value[..., :128] *= 1.05
        return {**got, name: value}

    return change


def one_row(name: str) -> Change:
    """The first of two rows: medians over rows and sets do not see it."""

    def change(got: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        value = got[name].clone()
        value[0] *= 1.05
        return {**got, name: value}

    return change


def times(name: str, factor: float, since: int = 0) -> Change:
    return lambda got, number: {**got, name: got[name] * factor if number > since else got[name]}


def swapped(got: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    return {**got, "ids": (got["ids"] + 1) % 16}


def against(kind: str, op: str, change: Change) -> list[Column]:
    made = lambda: Changed(op, change)  # noqa: E731
    return [Column(UNFUSED, StockBinder, False), Column(CHAIN, made, True), Column(NO_OVERLAP, made, False)]


@pytest.mark.parametrize(
    ("kind", "op", "change", "said"),
    [
        (KDA, "moe_tail", tile("delta"), "delta"),
        (KDA, "moe_shared", times("y", float("nan")), "not finite"),
        (KDA, "kda_core", times("s", 1.05), "s is"),
        (MLA, "moe_experts", times("part", 1.05), "experts is"),
        (MLA, "mla_q", times("query", 0.5), "value is|prefix is"),
        (MLA, "mla_out_gate", tile("y"), "value is"),
        (MLA, "moe_router", swapped, "router breaks a rule"),
        (KDA, "moe_tail", one_row("delta"), "delta of one row is"),
    ],
)
def test_a_side_that_is_wrong_is_refused_before_it_is_timed(kind: str, op: str, change: Change, said: str) -> None:
    with pytest.raises(Refused, match=said) as refusal:
        measure(JOBS[kind], REGISTRY, chosen=against(kind, op, change))
    assert str(refusal.value).startswith(CHAIN)


def test_a_replay_that_gives_another_delta_than_the_eager_step_is_refused() -> None:
    with pytest.raises(Refused, match="a replay of its graph"):
        measure(JOBS[KDA], REGISTRY, chosen=against(KDA, "moe_tail", times("delta", 1.5, since=4)))


def test_columns_beside_the_others_are_what_one_wrong_tile_shows() -> None:
    gen = torch.Generator().manual_seed(1)
    want = torch.randn((6, 1024), generator=gen, dtype=torch.float64)
    stock, mine = (want + 1e-3 * torch.randn(want.shape, generator=gen, dtype=torch.float64) for _ in range(2))
    mine[:, 256:384] = want[:, 256:384] * 1.0025  # a row as a whole is then 1.3 times as far
    found = [check.distances([{"delta": side}], [{"delta": want}]) for side in (mine, stock)]
    with pytest.raises(Refused, match="columns 256 to 383"):
        check.judged("x", *found)
    assert check.judged("x", found[1], found[1]) == {"delta": 1.0}


def test_a_layer_is_measured_with_all_its_seats_and_sides() -> None:
    got = measure(JOBS[MLA], REGISTRY)
    assert [s.name for s in got.sides] == ["unfused", "chain", "no_overlap", "no_promoted"]
    assert all(len(s.samples) == 2 and s.low <= s.us <= s.high and s.launches == -1 for s in got.sides)
    assert "compiled" in got.left_out and got.floor_us == 0.0 and got.timeline == ()
    seats = [p.seat.split(".")[2] for p in got.parts]
    assert seats == ["pre", "in_proj", "append", "query", "attend", "value", "oproj", "post", "shared", "router",
                     "latent", "experts", "tail"]  # fmt: skip
    assert all(p.path == "stock" and p.reason for p in got.parts)
    # 2 tokens, 4 experts each of 16: what they read follows from how many are distinct
    moved = next(p.bytes for p in got.parts if p.op == "moe_experts")
    expert = 2 * 64 * (64 + 4) + 128 * (32 + 2)
    rows = 2 * (2 * 2 * 128 + 4 * 6)
    assert moved == pytest.approx(got.experts * expert + rows, abs=1)
    assert 4 <= got.experts <= 8 and got.bytes == sum(p.bytes for p in got.parts)


def test_a_layer_has_the_weights_of_the_model_and_even_routing_no_bias() -> None:
    drawn = draw(JOBS[KDA], REGISTRY, 0)
    assert set(drawn.weights) == {n.removeprefix("layers.1.") for n in weights().tensors if n.startswith("layers.1.")}
    assert not drawn.weights["moe.bias"].any()
    skewed = draw(dataclasses.replace(JOBS[KDA], routing="skewed"), REGISTRY, 0)
    assert skewed.weights["moe.bias"].any()


def test_roles_of_the_outputs_that_are_heard_are_outputs_only() -> None:
    drawn = draw(JOBS[KDA], REGISTRY, 0)
    layer = built(drawn)
    check.step(layer, drawn)
    for heard in layer.tap.heard:
        specs = {t.name: t.role for t in REGISTRY.get(heard.op).present(heard.problem)}
        assert all(specs[name] is Role.OUT for name in heard.outputs)
