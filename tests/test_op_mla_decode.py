"""mla_decode against plain loops and closed forms, its traps, and faults that must not pass."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch

from kgen.contract import Values
from kgen.ops import mla_paged
from kgen.ops.mla_decode import MlaDecode
from kgen.ops.mla_math import DTYPES, EMPTY_LSE, LATENT, ROW, SM_SCALE, rows_seen
from kgen.records import Problem

OP = MlaDecode()
POINTS: list[Mapping[str, str]] = [
    {"lse": "yes"},
    {"lse": "yes", "cache": "e4m3"},
    {"lse": "yes", "q": "4"},
    {"lse": "yes", "q": "8", "cache": "e4m3"},
]
LN2 = math.log(2)


def point(axes: Mapping[str, str], tokens: int = 8, dims: str = "nano") -> Problem:
    return OP.problem(dims, tokens, "sm_90a", axes)


def drawn(problem: Problem, family: str, seed: int = 3) -> Values:
    return OP.inputs(problem, family, seed, "cpu")


def flat_rows(values: Values) -> torch.Tensor:
    """Every row of the cache by flat number, as float32."""
    return values["cache"].float().view(-1, ROW)


def by_loops(values: Values, request: int, token: int, head: int, q: int) -> tuple[list[float], float]:
    """Latent and log2 sum of one token and head, in Python floats."""
    page, shard, shards = values["cache"].shape[1], values["shard"], values["shards"]
    length, table = int(values["lengths"][request]), values["block_table"][request].tolist()
    query = values["query"][request * q + token, head].float().tolist()
    mine = [j // shards for j in range(length - q + 1 + token) if j % shards == shard]
    keys = [values["cache"][table[i // page], i % page].float().tolist() for i in mine]
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) * values["sm_scale"] for key in keys]
    if not scores:
        return [0.0] * 8, EMPTY_LSE
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    mixed = [sum(w * k[c] for w, k in zip(weights, keys, strict=True)) / sum(weights) for c in range(504, 512)]
    return [m * values["out_scale"] for m in mixed], top / LN2 + math.log2(sum(weights))


@pytest.mark.parametrize("axes", POINTS)
@pytest.mark.parametrize("family", ["normal", "scaled", "sharded"])
def test_the_reference_is_attention_by_plain_loops(axes: Mapping[str, str], family: str) -> None:
    problem = point(axes)
    q = int(problem.axes["q"])
    values = drawn(problem, family)
    values["lengths"] = torch.tensor([70, 9, 65, 64, 8, 12, 128, 0][: 8 // q], dtype=torch.int32)
    got = OP.reference(problem, values, rounded=False)
    for request in range(8 // q):
        for token, head in {(0, 0), (q - 1, 1), (q // 2, 1)}:
            latent, lse = by_loops(values, request, token, head, q)
            row = request * q + token
            assert got["lat"][row, head, 504:].tolist() == pytest.approx(latent, rel=1e-9, abs=1e-12)
            assert float(got["lse"][row, head]) == pytest.approx(lse, rel=1e-12)


def test_every_count_of_visible_rows_is_that_of_dealing_rows_out() -> None:
    for q in (1, 4, 8):
        lengths = torch.tensor([0, *range(q, 40)], dtype=torch.int32)
        for shards in (1, 2, 3, 8):
            for shard in range(shards):
                seen = rows_seen(lengths, q, shard, shards)
                for length, counts in zip(lengths.tolist(), seen.tolist(), strict=True):
                    dealt = [len(range(shard, max(0, length - q + 1 + t), shards)) for t in range(q)]
                    assert counts == dealt


@pytest.mark.parametrize("axes", POINTS[:2])
def test_one_row_gives_that_row_and_its_score(axes: Mapping[str, str]) -> None:
    problem = point(axes)
    values = drawn(problem, "shortest")
    first = values["block_table"][:, 0].long()
    row = values["cache"][first, 0].double()
    score = torch.einsum("thc,tc->th", values["query"].double(), row) * SM_SCALE
    for got in (OP.stock(problem)(values), OP.reference(problem, values, True)):
        want = (row[:, None, :LATENT] * 0.6875).to(torch.bfloat16).double().expand(-1, 2, -1)
        assert torch.equal(got["lat"].double(), want)
        torch.testing.assert_close(got["lse"].double(), score / LN2, rtol=0, atol=1e-5)


@pytest.mark.parametrize("axes", POINTS)
def test_equal_rows_give_that_row_and_the_logarithm_of_the_length(axes: Mapping[str, str]) -> None:
    problem = point(axes)
    values, q = drawn(problem, "equal"), int(problem.axes["q"])
    row = values["cache"][0, 0].double()
    got = OP.reference(problem, values, False)
    assert torch.allclose(got["lat"], (row[:LATENT] * 0.6875).expand_as(got["lat"]), rtol=1e-12, atol=0)
    seen = torch.tensor([int(n) - q + 1 + t for n in values["lengths"] for t in range(q)]).double()
    score = values["query"].double() @ row * SM_SCALE
    assert torch.allclose(got["lse"], score / LN2 + torch.log2(seen)[:, None], rtol=1e-10)


@pytest.mark.parametrize("axes", POINTS)
def test_what_no_token_may_see_changes_no_bit(axes: Mapping[str, str]) -> None:
    problem = point(axes)
    plain = drawn(problem, "garbage")
    assert bool(plain["cache"].float().isnan().any())
    clean = {**plain, "cache": plain["cache"].float().nan_to_num(0.25).to(plain["cache"].dtype)}
    for run in (OP.stock(problem), lambda v: OP.reference(problem, v, True)):
        one, two = run(plain), run(clean)
        assert all(torch.equal(one[n], two[n]) and bool(torch.isfinite(one[n]).all()) for n in one)


@pytest.mark.parametrize("axes", POINTS)
def test_one_row_too_many_meets_nan_in_the_garbage_family(axes: Mapping[str, str]) -> None:
    problem = point(axes)
    values = drawn(problem, "garbage")
    longer = {**values, "lengths": values["lengths"] + 1}
    assert bool(OP.reference(problem, longer, True)["lat"].isnan().any())


def test_each_family_holds_its_trap() -> None:
    problem = point({"lse": "yes"})
    gen = torch.Generator().manual_seed(3)
    lengths = {f.name: mla_paged._lengths(f.name, 16, 1, gen).tolist() for f in OP.families}
    assert {63, 64, 65, 1, 1023, 1024} <= set(lengths["borders"])
    assert set(lengths["shortest"]) == {1} and set(lengths["long"]) == {1024} and set(lengths["empty"]) == {0}
    assert lengths["uneven"].count(0) == 5 and max(lengths["uneven"]) > 500
    assert all(256 <= n < 768 for n in lengths["normal"])
    table = drawn(problem, "normal")["block_table"]
    assert table.unique().numel() == table.numel()
    assert bool((table[:, 1:] != table[:, :-1] + 1).any(1).all())
    large, negative = (OP.reference(problem, drawn(problem, n), False)["lse"] * LN2 for n in ("large", "negative"))
    assert float(large.abs().max()) > 300  # exp() overflows float32 beyond 88.7
    assert float(negative.max()) < -1000
    sharded = drawn(problem, "sharded")
    seen = rows_seen(sharded["lengths"], 1, sharded["shard"], 8)
    assert bool((seen == 0).any()) and bool((seen > 1).any())
    verify = drawn(point({"q": "4"}), "sharded", 2)
    verify["lengths"][0] = 4
    assert verify["shard"] == 3 and rows_seen(verify["lengths"], 4, 3, 8)[0].tolist() == [0, 0, 0, 1]
    scaled = drawn(problem, "scaled")
    assert (scaled["sm_scale"], scaled["out_scale"]) == (SM_SCALE / 64, 0.6875)
    assert pytest.approx(0.0721687836487, rel=1e-11) == SM_SCALE  # 1 / sqrt(192), 192 = 128 + 64


@pytest.mark.parametrize("axes", POINTS)
def test_the_dominant_row_has_all_the_weight_and_lies_anywhere(axes: Mapping[str, str]) -> None:
    problem = point(axes)
    values = drawn(problem, "dominant")
    push = values["cache"].float().view(-1, ROW)
    push = push[(push.abs() == 4).all(-1)]
    assert push.shape[0] >= len(values["lengths"])
    got = OP.reference(problem, values, True)["lat"]
    assert torch.equal(got, (push[0, :LATENT] * 0.6875).double().expand_as(got))


@pytest.mark.parametrize("axes", POINTS)
def test_empty_requests_give_zeros_and_the_stand_in_for_log_zero(axes: Mapping[str, str]) -> None:
    problem = point(axes)
    values = drawn(problem, "empty")
    assert bool(values["cache"].float().isnan().all())
    for got in (OP.stock(problem)(values), OP.reference(problem, values, True)):
        assert not bool(got["lat"].any())
        assert bool((got["lse"] == torch.tensor(-3e38, dtype=torch.float32).double()).all())


def judged(problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
    stock = OP.stock(problem)(values)
    rounded, true = (OP.reference(problem, values, r) for r in (True, False))
    rules = [
        OP.rule(s).judge(got[s.name], stock[s.name], rounded[s.name], true[s.name], 1).complaint
        for s in OP.outputs(problem)
    ]
    return [c for c in rules if c] + OP.hard_rules(problem, values, got)


def _one_row_short(v: Values) -> Values:
    return {**v, "lengths": (v["lengths"] - 1).clamp_min(0)}


def _without_causal_mask(v: Values) -> Values:
    return {**v, "lengths": v["lengths"] + 3}


def _blocks_in_order(v: Values) -> Values:
    return {**v, "block_table": v["block_table"].sort(1).values}


def _wrong_out_scale(v: Values) -> Values:
    return {**v, "out_scale": 1.0}


@pytest.mark.parametrize(
    ("fault", "axes", "family"),
    [
        (_one_row_short, {"lse": "yes"}, "normal"),
        (_one_row_short, {"lse": "yes"}, "shortest"),
        (_one_row_short, {"cache": "e4m3"}, "borders"),
        (_without_causal_mask, {"q": "4"}, "shortest"),
        (_without_causal_mask, {"q": "4", "lse": "yes"}, "normal"),
        (_blocks_in_order, {}, "normal"),
        (_wrong_out_scale, {}, "scaled"),
    ],
)
def test_a_kernel_with_this_fault_fails(
    fault: Callable[[Values], Values], axes: Mapping[str, str], family: str
) -> None:
    problem = point(axes)
    values = drawn(problem, family)
    assert judged(problem, values, OP.stock(problem)(values)) == []
    assert judged(problem, values, OP.stock(problem)(fault(values))) != []


@pytest.mark.parametrize(
    ("name", "value", "words"), [("lat", 1e-30, "lat of a token"), ("lse", -math.inf, "lse of a token")]
)
def test_rows_that_see_nothing_have_a_hard_rule(name: str, value: float, words: str) -> None:
    problem = point({"lse": "yes"})
    values = drawn(problem, "uneven")
    got = OP.stock(problem)(values)
    empty = int((values["lengths"] == 0).nonzero()[0, 0])
    got[name][empty, 0] = value
    assert any(words in line for line in OP.hard_rules(problem, values, got))


@pytest.mark.parametrize("cache", ["bf16", "e4m3"])
def test_a_pitched_cache_gives_the_same_bits(cache: str) -> None:
    problem = point({"cache": cache, "lse": "yes"})
    values = drawn(problem, "borders")
    wide = torch.zeros(values["cache"].shape[0], 66, ROW, dtype=DTYPES[cache])
    wide[:, :64] = values["cache"]
    pitched = {**values, "cache": wide[:, :64]}
    for run in (OP.stock(problem), lambda v: OP.reference(problem, v, True)):
        assert all(torch.equal(a, run(values)[n]) for n, a in run(pitched).items())


@pytest.mark.parametrize("cache", ["bf16", "e4m3"])
def test_streaming_in_smaller_pieces_changes_nothing(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = point({"cache": cache, "lse": "yes", "q": "4"})
    values = drawn(problem, "uneven")
    whole, stock = OP.reference(problem, values, False), OP.stock(problem)(values)
    monkeypatch.setattr("kgen.ops.mla_math.CHUNK_ROWS", 128)
    monkeypatch.setattr("kgen.ops.mla_decode.GATHER_BYTES", 2 * ROW * 64 * 2 * 3)
    for name, want in whole.items():
        torch.testing.assert_close(OP.reference(problem, values, False)[name], want, rtol=1e-12, atol=1e-12)
    pieces = OP.stock(problem)(values)
    assert judged(problem, values, pieces) == [] and judged(problem, values, stock) == []


def test_points_without_whole_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="6 tokens are no whole requests of 4"):
        point({"q": "4"}, 6)
    assert {p.tokens % int(p.axes["q"]) for t in OP.pack.bins for p in OP.points("nano", t, "")} == {0}
    assert OP.sizes(point({"q": "4"}, 16))["requests"] == 4


@pytest.mark.parametrize("axes", [{}, {"q": "4", "cache": "e4m3"}])
def test_a_scenario_needs_little_more_than_the_rows_of_its_contexts(axes: Mapping[str, str]) -> None:
    problem = point(axes, 4)
    q = int(problem.axes["q"])
    for name in ("context_1", "context_64", "context_1k", "context_4k"):
        values = drawn(problem, name)
        length = max(q, mla_paged.CONTEXTS[name])
        assert set(values["lengths"].tolist()) == {length}
        wide = -(-length // 64)
        assert tuple(values["block_table"].shape) == (4 // q, wide)
        assert values["cache"].shape[0] == wide * (4 // q) + 2
        assert int(values["block_table"].max()) < values["cache"].shape[0]
    assert {f.name for f in OP.scenarios} == {*mla_paged.CONTEXTS, "context_mixed"}
    assert mla_paged.CONTEXTS["context_512k"] == 512 * 1024


def test_mixed_contexts_have_the_same_sizes_for_every_seed() -> None:
    gen = torch.Generator().manual_seed
    one, two = (mla_paged._lengths("context_mixed", 8, 1, gen(s)) for s in (1, 2))
    assert sorted(one.tolist()) == sorted(two.tolist()) and one.tolist() != two.tolist()
    assert (min(one.tolist()), max(one.tolist())) == (1, 1 << 17)


def test_costs_follow_the_lengths_and_read_a_requests_rows_once() -> None:
    problem = point({"q": "4", "lse": "yes"}, 8, "k3-tp8")
    cost = OP.cost_of(problem, {"lengths": torch.tensor([100, 0]), "shard": 0, "shards": 1})
    assert cost.bytes == 100 * 1152 + 8 * 12 * (1152 + 1024 + 4)
    assert cost.flops == 2 * 12 * 1088 * (97 + 98 + 99 + 100)
    sharded = OP.cost_of(problem, {"lengths": torch.tensor([100, 0]), "shard": 7, "shards": 8})
    assert sharded.bytes == 12 * 1152 + 8 * 12 * 2180  # rows 7, 15, ..., 95
