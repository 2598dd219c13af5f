"""Statistics, rules and launch attestation of the full-model gate, on made-up numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kgen.gates import fullmodel_attest as attest
from kgen.gates import fullmodel_stats as stats
from kgen.gates.fullmodel_plan import REPLAYS, Batch, plan, token_ids
from kgen.gates.fullmodel_rules import Side, judge
from kgen.model.step import Output
from kgen.ops import REGISTRY

STEPS, COUNT, VOCAB, HIDDEN = 40, 8, 64, 1024
NOISE = 4e-3


def made(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


WANT = Output(
    torch.randn(STEPS, COUNT, VOCAB, generator=made(0), dtype=torch.float64),
    torch.randn(STEPS, COUNT, HIDDEN, generator=made(1), dtype=torch.float64),
)


def noisy(seed: int, size: float = NOISE) -> Output:
    gen = made(seed)
    return Output(*(w + size * torch.randn(w.shape, generator=gen, dtype=w.dtype) for w in (WANT.logits, WANT.hidden)))


def side(output: Output) -> Side:
    return Side({("t8", "graph"): stats.rows(output, WANT)})


STOCK = side(noisy(2))


def test_another_rounding_of_the_same_size_passes() -> None:
    breaches, numbers = judge(side(noisy(3)), STOCK)
    assert breaches == []
    assert numbers["modes"]["graph"]["hidden"][0] == pytest.approx(1.0, abs=0.1)


def _larger(o: Output) -> Output:
    return noisy(4, 1.5 * NOISE)


def _tile(o: Output) -> Output:
    hidden = o.hidden.clone()
    hidden[..., 256:384] *= 1.02
    return Output(o.logits, hidden)


def _row(o: Output) -> Output:
    hidden = o.hidden.clone()
    hidden[:, 5] *= 1.05
    return Output(o.logits, hidden)


def _rare(o: Output) -> Output:
    hidden = o.hidden.clone()
    hidden[::4, 0] *= 1.2
    hidden[1::4, 1] *= 1.2
    return Output(o.logits, hidden)


def _few_tokens(o: Output) -> Output:
    logits = o.logits.clone()
    logits[::3, 0, 0] = 99.0
    return Output(logits, o.hidden)


def _infinite(o: Output) -> Output:
    logits = o.logits.clone()
    logits[0, 0, 0] = float("inf")
    return Output(logits, o.hidden)


@pytest.mark.parametrize(
    ("alter", "code", "says"),
    [
        (_larger, "fullmodel.logits", "1.5"),
        (_tile, "fullmodel.logits", "columns 256 to 383"),
        (_row, "fullmodel.logits", "row 5 of the batch is, at every step,"),
        (_rare, "fullmodel.logits", "rows are far from float64 with the candidate only"),
        (_few_tokens, "fullmodel.agreement", "exact McNemar p ="),
        (_infinite, "fullmodel.logits", "not finite"),
    ],
)
def test_each_kind_of_damage_has_a_rule_that_sees_it(alter: Callable[[Output], Output], code: str, says: str) -> None:
    breaches, _ = judge(side(alter(noisy(3))), STOCK)
    assert code in {b.code for b in breaches}
    assert any(says in b.message for b in breaches), [b.message for b in breaches]


def test_free_generation_that_leaves_float64_earlier_is_a_loss() -> None:
    late, early = torch.full((16,), 20), torch.full((16,), 3)
    rows = STOCK.rows
    breaches, numbers = judge(Side(rows, {"t8": early}), Side(rows, {"t8": late}))
    assert [b.code for b in breaches] == ["fullmodel.agreement"]
    assert numbers["generation"]["earlier"] == 16
    assert judge(Side(rows, {"t8": late}), Side(rows, {"t8": early}))[0] == []


@pytest.mark.parametrize(
    ("losses", "wins", "p"), [(0, 0, 1.0), (1, 0, 0.5), (10, 0, 2**-10), (3, 3, 42 / 64), (0, 5, 1.0)]
)
def test_mcnemar_is_the_exact_binomial_tail(losses: int, wins: int, p: float) -> None:
    assert stats.mcnemar(losses, wins) == pytest.approx(p)


def test_mcnemar_copes_with_thousands_of_pairs() -> None:
    assert 0.4 < stats.mcnemar(5000, 5000) < 0.6
    assert stats.mcnemar(5400, 4600) < 1e-10


def test_first_divergence_is_the_step_of_the_first_difference() -> None:
    want = torch.tensor([[1, 1, 1], [2, 2, 2], [3, 3, 3]])
    got = torch.tensor([[1, 9, 1], [2, 2, 2], [9, 3, 3]])
    assert stats.first_divergence(got, want).tolist() == [2, 0, 3]


def test_a_plan_holds_every_bin_and_padded_counts_and_wide_batches_generate() -> None:
    op = REGISTRY.get("moe_shared")
    full = plan(op, "nano", "sm_90a", "cuda", op.pack.bins, (1, 2), brief=False)
    names = [b.name for b in full.batches]
    assert names == [*(f"t{n}" for n in op.pack.bins), "t16/n12", "t32/n24", "t64/n48"]
    assert {b.name: b.other for b in full.batches if b.generate} == {"t8": 16, "t64": 32}
    assert full.graph and all(b.steps * b.count >= 256 for b in full.batches)
    brief = plan(op, "nano", "sm_90a", "cuda", op.pack.bins, (1, 2), brief=True)
    assert set(brief.batches) <= {b if not b.generate else Batch(b.tokens, b.count, b.steps) for b in full.batches}
    with pytest.raises(ValueError, match="no token bin"):
        plan(op, "nano", "sm_90a", "cuda", (), (1, 2), brief=False)


def test_both_sides_decode_the_same_tokens_and_batches_different_ones() -> None:
    op = REGISTRY.get("moe_shared")
    full = plan(op, "nano", "sm_90a", "cpu", (4, 8), (1, 2), brief=False)
    again = plan(op, "nano", "sm_90a", "cpu", (8,), (1, 2), brief=True)
    (mine,) = (b for b in full.batches if b.name == "t8")
    first = token_ids(full, mine, 512, "cpu")
    assert torch.equal(first, token_ids(again, again.batches[0], 512, "cpu"))
    assert not torch.equal(first[:8, :4], token_ids(full, full.batches[0], 512, "cpu")[:8])


# --- attestation

BATCH = Batch(8, 8, steps=32, generate=5)
STEP = {"gate_up": 6, "down": 6}


def times(n: int) -> dict[str, int]:
    return {k: v * n for k, v in STEP.items()}


def graph(**changed: Any) -> dict[str, Any]:
    profiled = [{**times(REPLAYS), "cublas": 99, "down(float*)": 0}]
    return {
        "mode": "graph",
        "counts": {},
        "warm": times(2),
        "captured": times(1),
        "profiled": profiled,
        **changed,
    }


EAGER = {"mode": "eager", "counts": times(32 + 3 + 5)}


def test_exact_launches_are_attested() -> None:
    assert attest.candidate_faults(BATCH, [EAGER, graph()], STEP) == []


def test_a_round_in_which_the_profiler_lost_records_is_made_up_by_a_whole_one() -> None:
    lossy = [{"gate_up": 3}, times(REPLAYS)]
    assert attest.candidate_faults(BATCH, [graph(profiled=lossy)], STEP) == []


def test_a_signature_behind_a_kernels_name_does_not_hide_it() -> None:
    seen = {f"{k}(bf16*, int)": n for k, n in times(REPLAYS).items()}
    assert attest.candidate_faults(BATCH, [graph(profiled=[seen])], STEP) == []


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({**EAGER, "counts": times(39)}, "t8 eager: counted"),
        ({**EAGER, "counts": {}}, "counted nothing"),
        ({**EAGER, "counts": {**times(40), "extra": 1}}, "1 x extra"),
        (graph(captured=times(2)), "capture: counted"),
        (graph(warm=times(1)), "warm-up: counted"),
        (graph(counts=times(1)), "launched from the host during 40 replays"),
        (graph(profiled=[times(REPLAYS - 1)] * 2), "the profiler saw"),
        (graph(profiled=[times(REPLAYS), times(REPLAYS + 1)]), "the profiler saw"),
        (graph(profiled=[{}]), "the profiler saw nothing"),
    ],
)
def test_more_or_fewer_launches_anywhere_are_a_fault(record: dict[str, Any], says: str) -> None:
    faults = attest.candidate_faults(BATCH, [record], STEP)
    assert len(faults) == 1 and says in faults[0]


def test_a_stock_run_with_one_of_the_candidates_kernels_is_a_fault() -> None:
    clean = {"mode": "graph", "counts": {}, "profiled": [{"cublas": 4}]}
    assert attest.stock_faults("stock t8", [clean], STEP) == []
    assert attest.stock_faults("stock t8", [{**clean, "profiled": [{"down": 1}]}], STEP)
    assert attest.stock_faults("stock t8", [{**clean, "counts": {"down": 1}}], STEP)


def test_switched_off_the_run_must_be_the_stock_run() -> None:
    logits = torch.eye(4)[None]
    stock = [{"mode": "graph", "profiled": [{"cublas": 4}], "logits": logits}]
    other = [{"mode": "graph", "profiled": [{"cublas": 4, "down": 1}], "logits": logits.flip(-1)}]
    assert attest.trace_faults("t8", stock, stock) == attest.token_faults("t8", stock, stock) == []
    assert "other kernels run" in attest.trace_faults("t8", other, stock)[0]
    assert "other tokens" in attest.token_faults("t8", other, stock)[0]
