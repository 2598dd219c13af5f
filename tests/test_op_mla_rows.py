"""mla_q and mla_kv_append against numbers worked out by hand, and the hard rules against planted faults."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from kgen.contract import Values
from kgen.contract.rules import Codes
from kgen.gates import judge
from kgen.ops.mla_kv_append import MlaKvAppend
from kgen.ops.mla_math import LATENT, PAGED, ROW
from kgen.ops.mla_q import MlaQ
from kgen.records import Problem

Q, APPEND = MlaQ(), MlaKvAppend()
E4M3 = {"cache": "e4m3"}
Q_LORA, WIDTH = 128, 960  # of nano
NEAR_ONE = 1.0078125  # 1 + 2^-7: the bf16 value next to 1


def q_values(eps: float, scale: float) -> Values:
    """A row of ones, so that the norm gives w_qn / sqrt(1 + eps), and no weight anywhere."""
    p = torch.full((1, WIDTH), torch.nan)
    p[:, :Q_LORA] = 1.0
    w_qb, w_uk = torch.zeros(2 * 192, Q_LORA), torch.zeros(2, 128, LATENT)
    values = {"p": p, "w_qn": torch.ones(Q_LORA), "w_qb": w_qb, "w_uk": w_uk}
    return {**{k: v.to(torch.bfloat16) for k, v in values.items()}, "eps": eps, "q_scale_inv": scale}


def test_the_query_by_plain_loops() -> None:
    problem = Q.problem("nano", 1, "sm_90a")
    values = Q.inputs(problem, "normal", 3, "cpu")
    p, w_qn, w_qb, w_uk = (values[n].tolist() for n in ("p", "w_qn", "w_qb", "w_uk"))
    row = p[0][:Q_LORA]
    scale = 1 / math.sqrt(sum(x * x for x in row) / Q_LORA + values["eps"])
    qc = [x * scale * w for x, w in zip(row, w_qn, strict=True)]
    full = [sum(a * b for a, b in zip(qc, weights, strict=True)) for weights in w_qb]
    got = Q.reference(problem, values, rounded=False)["query"]
    for head in range(2):
        nope, pe = full[192 * head : 192 * head + 128], full[192 * head + 128 : 192 * head + 192]
        latent = [sum(n * w_uk[head][i][column] for i, n in enumerate(nope)) for column in (0, 1, 300, 511)]
        assert got[0, head, [0, 1, 300, 511]].tolist() == pytest.approx(latent, rel=1e-10, abs=1e-12)
        assert got[0, head, LATENT:].tolist() == pytest.approx(pe, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(
    ("axes", "scale", "latent", "key"),
    [
        ({}, 1.0, 1.0234375, 1.015625),  # bf16: 1.0078^2 = 1.01569 -> 1.015625, times 1.0078 = 1.02356 -> 1.0234375
        ({}, 300.0, 308.0, 304.0),  # 307.03 and 304.69 where bf16 steps by 2
        (E4M3, 1.0, 1.0, 1.0),  # e4m3 steps by 1/8 there
        (E4M3, 300.0, 320.0, 320.0),  # and by 32 between 256 and 448
        (E4M3, -500.0, -448.0, -448.0),  # beyond the largest code
    ],
)
def test_every_rounding_of_the_query_is_where_the_formulas_have_it(
    axes: Mapping[str, str], scale: float, latent: float, key: float
) -> None:
    problem = Q.problem("nano", 1, "sm_90a", axes)
    values = q_values(0.0, scale)
    values["w_qn"][7] = NEAR_ONE
    values["w_qb"][192 + 5, 7] = values["w_qb"][192 + 128 + 9, 7] = NEAR_ONE  # head 1: nope 5 and pe 9
    values["w_uk"][1, 5, 400] = NEAR_ONE
    for got in (Q.reference(problem, values, True)["query"], Q.stock(problem)(values)["query"].double()):
        assert (float(got[0, 1, 400]), float(got[0, 1, LATENT + 9])) == (latent, key)
        assert int((got != 0).sum()) == 2
    true = float(Q.reference(problem, values, False)["query"][0, 1, 400])
    exact = NEAR_ONE**3 * scale
    assert true == pytest.approx(max(-448.0, exact) if axes else exact, rel=1e-12)


def test_the_normed_row_and_the_absorbed_latent_are_rounded_on_the_way() -> None:
    problem = Q.problem("nano", 1, "sm_90a")
    norm = q_values(2.625, 1.0)  # 1 / sqrt(3.625) = 0.525226 -> 0.5234375
    norm["w_qb"][128, 0] = 1.84375  # -> 247.06 / 256; without that rounding 247.91
    latent = q_values(0.0, 1.375)
    latent["w_qb"][0, 0], latent["w_uk"][0, 0, 0] = 1.6484375, 1.7109375  # 2.820374 -> 2.828125
    for got in (Q.reference(problem, norm, True)["query"], Q.stock(problem)(norm)["query"].double()):
        assert float(got[0, 0, LATENT]) == 247 / 256
    for got in (Q.reference(problem, latent, True)["query"], Q.stock(problem)(latent)["query"].double()):
        assert float(got[0, 0, 0]) == 249 / 64  # 248.875 / 64; without that rounding 248.19


def test_eps_is_added_to_the_mean_square_of_the_query_row() -> None:
    problem = Q.problem("nano", 1, "sm_90a")
    values = q_values(3.0, 1.0)
    values["w_qb"][128, 0] = 6.0
    assert float(Q.reference(problem, values, False)["query"][0, 0, LATENT]) == 3.0  # 6 / sqrt(1 + 3)


def test_the_saturated_family_saturates_and_the_tiny_one_is_decided_by_eps() -> None:
    problem = Q.problem("nano", 8, "sm_90a", E4M3)
    codes = Q.stock(problem)(Q.inputs(problem, "saturated", 3, "cpu"))["query"].float()
    assert 0.05 < float((codes.abs() == 448).float().mean()) < 0.3
    tiny = Q.problem("nano", 8, "sm_90a")
    query = Q.reference(tiny, Q.inputs(tiny, "tiny", 3, "cpu"), False)["query"]
    assert float(query.abs().max()) < 1e-8  # 2^-40 / sqrt(1e-5), not normed to 1


@pytest.mark.parametrize("axes", [{}, E4M3])
def test_a_query_with_a_tile_scaled_by_five_percent_fails(axes: Mapping[str, str]) -> None:
    problem = Q.problem("nano", 8, "sm_90a", axes)
    values = Q.inputs(problem, "normal", 3, "cpu")
    stock = Q.stock(problem)(values)["query"]
    wrong = stock.float()
    wrong[:, 1, :64] *= 1.05
    rounded, true = (Q.reference(problem, values, r)["query"] for r in (True, False))
    spec = Q.outputs(problem)[0]
    assert Q.rule(spec).judge(wrong.to(stock.dtype), stock, rounded, true, 1).complaint != ""


def append_values(problem: Problem, slots: list[int], scale: float = 1.0) -> Values:
    """Latent columns 2, so that the norm gives 1; NaN in the columns of the others."""
    values = APPEND.inputs(problem, "normal", 3, "cpu")
    p = torch.full_like(values["p"], torch.nan)
    p[:, Q_LORA : Q_LORA + LATENT] = 2.0
    p[:, Q_LORA + LATENT : Q_LORA + ROW] = 0.0
    ones = torch.ones_like(values["w_kvn"])
    return {**values, "p": p, "w_kvn": ones, "slots": torch.tensor(slots), "eps": 0.0, "k_scale_inv": scale}


@pytest.mark.parametrize(
    ("axes", "scale", "keys"),
    [
        ({}, 1.0, {17.0: 17.0, 257.0: 256.0, 259.0: 260.0, 1000.0: 1000.0}),  # bf16 steps by 2 from 256 on
        (E4M3, 1.0, {17.0: 16.0, 19.0: 20.0, 1000.0: 448.0, -1000.0: -448.0}),  # ties to even; saturates
        (E4M3, 0.5, {34.0: 16.0, 5.0: 2.5}),
    ],
)
def test_the_new_row_lies_at_its_slot_with_the_key_neither_normed_nor_moved(
    axes: Mapping[str, str], scale: float, keys: Mapping[float, float]
) -> None:
    problem = APPEND.problem("nano", 2, "sm_90a", axes)
    values = append_values(problem, [-1, 64 + 3], scale)
    for column, key in enumerate(keys):
        values["p"][1, Q_LORA + LATENT + column] = key
    for cache in (APPEND.reference(problem, values, True)["cache"], APPEND.stock(problem)(values)["cache"].double()):
        assert bool((cache[1, 3, :LATENT] == scale).all())
        assert cache[1, 3, LATENT : LATENT + len(keys)].tolist() == list(keys.values())
        changed = (cache != values["cache"].double()).any(-1).nonzero().tolist()
        assert changed == [[1, 3]]


def test_the_latent_of_the_cache_is_normed_by_its_own_512_columns() -> None:
    problem = APPEND.problem("nano", 1, "sm_90a")
    values = APPEND.inputs(problem, "outlier", 9, "cpu")
    block, row = divmod(int(values["slots"][0]), 64)
    latent = values["p"][0, Q_LORA : Q_LORA + LATENT].tolist()
    scale = 1 / math.sqrt(sum(x * x for x in latent) / 512 + values["eps"])
    want = [x * scale * w for x, w in zip(latent, values["w_kvn"].tolist(), strict=True)]
    got = APPEND.reference(problem, values, False)["cache"][block, row]
    assert got[:LATENT].tolist() == pytest.approx(want, rel=1e-10)
    assert torch.equal(got[LATENT:], values["p"][0, Q_LORA + LATENT : Q_LORA + ROW].double())


def test_each_slot_family_holds_its_trap() -> None:
    problem = APPEND.problem("nano", 16, "sm_90a")
    total = APPEND.sizes(problem)["blocks"] * 64
    slots = {f.name: APPEND.inputs(problem, f.name, 4, "cpu")["slots"].tolist() for f in APPEND.families}
    for name, found in slots.items():
        used = [s for s in found if s >= 0]
        assert len(set(used)) == len(used) and max(used) < total, name
    assert slots["padding"].count(-1) == 8 and all(n == "padding" or -1 not in s for n, s in slots.items())
    assert slots["run"] == list(range(56, 72))
    assert {0, 63, 64, total - 1} <= set(slots["edges"])
    assert slots["again"] == APPEND.inputs(problem, "again", 5, "cpu")["slots"].tolist()
    one = APPEND.problem("nano", 1, "sm_90a")
    assert APPEND.inputs(one, "padding", 4, "cpu")["slots"].tolist() == [-1]


@pytest.mark.parametrize("axes", [{}, E4M3])
def test_steps_on_one_cache_pass_and_a_fault_in_a_late_step_does_not(axes: Mapping[str, str]) -> None:
    """A hard rule compares with the reference's state: what a candidate rounds otherwise must not count as a change."""
    problem = APPEND.problem("nano", 2, "sm_90a", axes)
    first = APPEND.inputs(problem, "again", 3, "cpu")
    chain = judge.Chain(APPEND, problem, first)
    for step in range(4):
        answer = chain.step(APPEND.inputs(problem, "again", 3 + step, "cpu") if step else None)
        nudged = answer.stock["cache"].clone()
        written = nudged.view(-1, ROW)[first["slots"]]
        written.view(torch.uint8)[:, 0] ^= 1  # one code in 576, one step away
        nudged.view(-1, ROW)[first["slots"]] = written
        rows = judge.judge_outputs(APPEND, problem, chain.before, {"cache": nudged}, answer, "again", 3, step + 1)
        assert [r.complaint for r in rows if r.complaint] == []
        chain.stock["cache"] = nudged
    wrong = {"cache": first["cache"]}  # as if nothing had been written
    assert any(r.complaint for r in judge.judge_outputs(APPEND, problem, chain.before, wrong, answer, "again", 3, 4))


def _neighbour(cache: torch.Tensor, slot: int) -> None:
    cache.view(-1, ROW).view(torch.uint8)[slot + 1, 5] ^= 1


def _padding_writes(cache: torch.Tensor, slot: int) -> None:
    cache.view(-1, ROW)[-1] = cache.view(-1, ROW)[slot]


def _not_written(cache: torch.Tensor, slot: int) -> None:
    cache.view(-1, ROW)[slot] = 0.0


def _one_tile_off(cache: torch.Tensor, slot: int) -> None:
    row = cache.view(-1, ROW)[slot]
    row[:64] = (row[:64].float() * 1.13).to(cache.dtype)


@pytest.mark.parametrize("axes", [{}, E4M3])
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_neighbour, "row 4 of block 1 has changed"),
        (_padding_writes, "row 63 of block 2 has changed"),
        (_not_written, "the rows written"),
        (_one_tile_off, "the rows written"),
    ],
)
def test_a_planted_fault_breaks_a_hard_rule(
    axes: Mapping[str, str], plant: Callable[[torch.Tensor, int], None], words: str
) -> None:
    problem = APPEND.problem("nano", 4, "sm_90a", axes)
    values = {**APPEND.inputs(problem, "normal", 3, "cpu"), "slots": torch.tensor([5, 64 + 3, -1, 90])}
    got = APPEND.stock(problem)(values)
    assert APPEND.hard_rules(problem, values, got) == []
    plant(got["cache"], 64 + 3)
    assert any(words in line for line in APPEND.hard_rules(problem, values, got))


def test_a_few_wrong_codes_pass_diluted_by_the_cache_but_not_among_the_rows_written() -> None:
    problem = APPEND.problem("nano", 1, "sm_90a", E4M3)
    values = APPEND.inputs(problem, "normal", 3, "cpu")
    got = APPEND.stock(problem)(values)
    row = got["cache"].view(-1, ROW).view(torch.uint8)[int(values["slots"][0])]
    row[:20] ^= 1  # the neighbouring code; 3 % of the row
    rounded, true = (APPEND.reference(problem, values, r)["cache"] for r in (True, False))
    stock = APPEND.stock(problem)(values)["cache"]
    assert Codes().judge(got["cache"], stock, rounded, true, 1).complaint == ""
    assert APPEND.hard_rules(problem, values, got) != []


@pytest.mark.parametrize("page", [16, 32, 128])
def test_another_page_size_is_another_dims_entry(page: int) -> None:
    class OtherPage(MlaKvAppend):
        dims: ClassVar = {"nano": {**PAGED["nano"], "page": page}}

    op = OtherPage()
    problem = op.problem("nano", 4, "sm_90a")
    values = {**op.inputs(problem, "normal", 3, "cpu"), "slots": torch.tensor([0, page - 1, page, 3 * page - 1])}
    got = op.stock(problem)(values)
    assert op.hard_rules(problem, values, got) == []
    changed = (got["cache"] != values["cache"]).any(-1).nonzero().tolist()
    assert changed == [[0, 0], [0, page - 1], [1, 0], [2, page - 1]]


@pytest.mark.parametrize("axes", [{}, E4M3])
def test_a_pitched_cache_gives_the_same_rows(axes: Mapping[str, str]) -> None:
    problem = APPEND.problem("nano", 4, "sm_90a", axes)
    values = APPEND.inputs(problem, "normal", 3, "cpu")
    cache = values["cache"]
    wide = torch.zeros(cache.shape[0], cache.shape[1] + 2, ROW, dtype=cache.dtype)
    wide[:, : cache.shape[1]] = cache
    pitched = {**values, "cache": wide[:, : cache.shape[1]]}
    for run in (APPEND.stock(problem), lambda v: APPEND.reference(problem, v, True)):
        assert torch.equal(run(pitched)["cache"].double(), run(values)["cache"].double())
    assert APPEND.hard_rules(problem, pitched, APPEND.stock(problem)(pitched)) == []


def test_costs_count_only_the_rows_written() -> None:
    problem = APPEND.problem("k3-tp8", 8, "sm_90a", E4M3)
    cost = APPEND.cost_of(problem, {"slots": torch.tensor([0, 1, 2, -1, -1, -1, -1, -1])})
    assert cost.bytes == 3 * 576 * 3 + 1024 + 64
    assert APPEND.cost(replace(problem, axes={"cache": "bf16"})).bytes == 8 * 576 * 4 + 1024 + 64
