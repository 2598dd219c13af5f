"""The decode model is wired right: in float64 every way of running the same tokens gives the same logits."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from support.decoders import CONTEXT, relative, session, tokens, weights

from kgen.model.decoder.config import CONFIGS, Config, complaints, config
from kgen.model.decoder.draw import maker_of
from kgen.model.decoder.prefill import prefill
from kgen.model.decoder.skew import measure
from kgen.model.decoder.step import Output
from kgen.model.decoder.weights import expected
from kgen.ops import REGISTRY

NANO = config("nano-random")
SAME = 1e-11  # float64, other summation orders
IDS = tokens(9, 3)


@cache
def plain() -> Output:
    """Nine tokens of three sequences, one step a token."""
    return session(NANO).teacher_forced(IDS)


@pytest.mark.parametrize("variant", [{"dcp": 2}, {"dcp": 3}, {"fused_oproj": True}], ids=str)
def test_another_way_to_compute_the_same_gives_the_same(variant: dict[str, int]) -> None:
    assert relative(session(replace(NANO, **variant)).teacher_forced(IDS).logits, plain().logits) < SAME


@pytest.mark.parametrize("dcp", [1, 2])
@pytest.mark.parametrize("q", [1, 4])
def test_prefill_leaves_what_single_steps_leave(dcp: int, q: int) -> None:
    mine = session(replace(NANO, dcp=dcp), q=q)
    assert relative(prefill(mine, IDS[:5]).logits, plain().logits[4]) < SAME
    if q == 1:
        assert relative(mine.decode(IDS[5]).logits, plain().logits[5]) < SAME
    else:
        got = mine.verify(IDS[5:9].T.contiguous()).logits.view(3, 4, -1).transpose(0, 1)
        assert relative(got, plain().logits[5:9]) < SAME


def test_prefill_in_pieces_is_prefill() -> None:
    mine = session(NANO)
    prefill(mine, IDS[:3])
    assert relative(prefill(mine, IDS[3:6]).logits, plain().logits[5]) < SAME


@pytest.mark.parametrize("kept", [(1, 1, 1), (2, 4, 1), (4, 4, 4), (3, 1, 2)])
def test_a_verify_step_keeps_any_prefix_and_forgets_the_rest(kept: tuple[int, ...]) -> None:
    mine = session(NANO, q=4)
    draft = IDS[:4].T.clone()
    for row, count in enumerate(kept):  # what is not kept was a wrong guess
        draft[row, count:] = 511
    mine.verify(draft)
    mine.accept(torch.tensor(kept))
    following = torch.stack([IDS[n : n + 4, row] for row, n in enumerate(kept)])
    got = mine.verify(following).logits.view(3, 4, -1)
    for row, n in enumerate(kept):
        assert relative(got[row], plain().logits[n : n + 4, row]) < SAME


def test_companions_and_padding_change_no_row() -> None:
    alone = session(NANO, rows=1, count=1).teacher_forced(IDS[:, 1:2])
    assert relative(alone.logits[:, 0], plain().logits[:, 1]) < SAME
    wide = session(NANO, rows=8, count=3).teacher_forced(IDS)
    assert relative(wide.logits, plain().logits) < SAME


def test_padding_rows_touch_no_state() -> None:
    mine = session(NANO, rows=8, count=3)
    mine.teacher_forced(IDS[:2])
    assert all(bool((s[4:] == 0).all()) and bool((s[1:4] != 0).any()) for s in mine.state.s.values())
    used = {int(b) for b in mine.state.block_table[:3].flatten()}
    for pages in mine.state.cache.values():
        assert all(int(block) in used for block in pages.flatten(1).abs().sum(1).nonzero())


def test_a_reset_session_starts_again() -> None:
    mine = session(NANO)
    first = mine.teacher_forced(IDS[:4]).logits
    assert torch.equal(mine.teacher_forced(IDS[:4]).logits, first)


def test_each_layer_matters() -> None:
    short = replace(NANO, layers=NANO.layers[:-1])
    assert relative(session(short).teacher_forced(IDS[:2]).logits, plain().logits[:2]) > 0.01


def test_a_full_context_is_refused_in_one_line() -> None:
    mine = session(NANO, rows=1, count=1)
    mine.skip(CONTEXT)
    with pytest.raises(ValueError, match="full: 192 used, 1 wanted"):
        mine.decode(IDS[0, :1])


def test_decode_refuses_a_verify_session() -> None:
    with pytest.raises(ValueError, match="verifies 4 tokens"):
        session(NANO, q=4).decode(IDS[0])


@pytest.mark.parametrize(("rows", "count"), [(4, 5), (4, 0)])
def test_a_count_that_does_not_fit_is_refused(rows: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} sequences do not fit a batch of {rows}"):
        session(NANO, rows=rows, count=count)


@pytest.mark.parametrize("rows", [9, 65])
def test_an_unsupported_batch_size_is_refused_in_one_line(rows: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} is not a token bin"):
        session(NANO, rows=rows)


def test_every_op_sits_somewhere_in_some_model() -> None:
    used = {p.op for c in (NANO, replace(NANO, dcp=2), replace(NANO, fused_oproj=True)) for p in seats(c)}
    assert used == set(REGISTRY.ops)


def seats(chosen: Config) -> list:
    return session(chosen, rows=1, count=1, wide=False).step.seats.problems


def test_a_step_makes_as_many_calls_as_its_layers_need() -> None:
    calls = session(NANO, rows=1, count=1, wide=False).step.calls()
    by_op: dict[str, int] = {}
    for key, n in calls.items():
        by_op[key.split("/")[0]] = by_op.get(key.split("/")[0], 0) + n
    assert by_op == {
        "attn_res": 17, "kda_in_proj": 6, "kda_core": 6, "mla_in_proj": 2, "mla_q": 2, "mla_kv_append": 2,
        "mla_decode": 2, "mla_out_gate": 2, "oproj_partial": 8, "dense_mlp": 1, "moe_router": 7, "moe_latent_down": 7,
        "moe_shared": 7, "moe_experts": 7, "moe_tail": 14, "lm_head_argmax": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_known_configurations_are_possible(name: str) -> None:
    assert not complaints(CONFIGS[name], REGISTRY)


def test_the_slice_has_the_models_own_widths() -> None:
    table = expected(CONFIGS["slice-tp8"], REGISTRY)
    shapes = {name: shape for name, (_, shape) in table.items()}
    assert shapes["layers.0.kda.w_in"] == (6288, 7168)
    assert shapes["layers.2.mla.w_in"] == (3648, 7168)
    assert shapes["layers.1.moe.w13"] == (896, 768, 1792)
    assert shapes["layers.1.moe.w_up"] == (7168, 3584)
    assert shapes["layers.0.dense.w_gate_up"] == (8448, 7168)
    assert shapes["lm_head"] == (20480, 7168)
    kinds = {(layer.attention, layer.ffn) for layer in CONFIGS["slice-tp8"].layers}
    assert kinds == {("kda", "dense"), ("kda", "moe"), ("mla", "moe")}
    assert sum(CONFIGS["slice-tp8"].opens_block(i) for i in range(len(CONFIGS["slice-tp8"].layers))) == 2


def test_everything_impossible_about_a_configuration_is_named_at_once() -> None:
    wrong = replace(NANO, block=1, dcp=0, axes={"mla_decode": {"cache": "int4"}})
    text = "; ".join(complaints(wrong, REGISTRY))
    assert "8 layers in blocks of 1 need 8 slots, there are 2" in text
    assert "dcp 0 is not positive" in text and "cache='int4'" in text


def test_an_unknown_model_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="no decode model 'k4'; known: slice-tp8"):
        config("k4")


def test_drawn_weights_have_the_statistics_that_their_recipe_claims() -> None:
    own = weights()
    assert abs(float(own["layers.3.mla.w_in"].float().std()) * 256**0.5 - 1) < 0.05
    growth = own["layers.7.mla.w_o"].float().std() / own["layers.0.kda.w_o"].float().std()
    assert 1.6 < float(growth) < 2.4
    loud = own["embed"].float().square().mean(0).sqrt()
    assert float(loud.max() / loud.median()) > 10


def test_a_wide_routers_skew_is_the_declared_one() -> None:
    gen, boost = torch.Generator().manual_seed(1), torch.ones(1024)
    router, bias = (maker_of(n, boost, 1.0)(s, gen) for n, s in (("w_router", (896, 1024)), ("bias", (896,))))
    scores = torch.sigmoid(torch.randn(2048, 1024, generator=gen) @ router.T) + bias
    found = measure(torch.topk(scores, 16).indices.view(-1, 8, 16), 896)
    assert 0.35 < found.top_tenth < 0.55
    assert found.distinct < 0.95 * found.even
