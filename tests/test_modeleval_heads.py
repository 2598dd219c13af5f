"""The query of latent attention: what the attention gives is kept and judged too where a query's builds sit."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.modeleval import judge, only, stand

from kgen.gates.contract import few_bins
from kgen.gates.modeleval import limits, rules_rows
from kgen.gates.modeleval.breach import LOGITS, Finding
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.distance import Rows
from kgen.gates.modeleval.exercise import EAGER, FILLED, Exercise, Way
from kgen.gates.modeleval.heads import KeptHeads
from kgen.gates.modeleval.plan import TABLE, plan
from kgen.gates.modeleval.rules_rows import Measured
from kgen.gates.modeleval.sides import Left, Record
from kgen.model.bind import StockBinder
from kgen.ops import PACK, REGISTRY
from kgen.records import Status

ARCH = "sm_90a"
CENSUS = Census(REGISTRY, ARCH)
KEEPS = Exercise(FILLED, Way("nano-random"), 2, 2, 3, (EAGER,), heads=True)
PLACE = f"{KEEPS.name} {EAGER}"
MUTANTS = [stand(name, 4, defect, op="mla_q") for name, defect in (("head_tile", "tile_scale"), ("drop_last_k",) * 2)]


def kept(*names: str, axes: dict[str, str] | None = None, device: str = "cuda") -> dict[str, list[Exercise]]:
    """By model: exercises that keep the heads, of these ops at the first dims and the small ones."""
    found = [(REGISTRY.get(n), d, b) for n in names for d in ("k3-tp8", "nano") for b in few_bins(PACK.bins)]
    problems = [op.problem(d, b, ARCH, axes) for op, d, b in found]
    made = plan(problems, PACK.small, TABLE[device], device, CENSUS)
    return {model: [e for e in exercises if e.heads] for model, exercises in made.models.items()}


def test_only_a_query_brings_them_so_that_other_ops_are_judged_as_before() -> None:
    for name in ("mla_decode", "mla_kv_append", "mla_out_gate", "moe_router", "moe_shared"):
        assert not any(kept(name).values()), name
    assert [e.kind for e in kept("mla_q")["slice-tp8"]] == [FILLED]
    assert kept("moe_shared", "mla_q")["slice-tp8"] == kept("mla_q")["slice-tp8"]


@pytest.mark.parametrize("axes", [{}, {"cache": "e4m3"}])
def test_they_are_kept_in_every_drawn_model_behind_a_context_at_a_bin_of_the_mutants(axes: dict[str, str]) -> None:
    models = kept("mla_q", axes=axes)
    assert not models.pop("nano")  # the trained one, whose rows say what its tasks need
    for (each,) in models.values():
        assert each.brief and each.given and each.requests in few_bins(PACK.bins) and each.context == 256
        assert each.count == each.requests > 1 and 64 <= each.count * each.steps < 64 + each.count
        assert each.name.endswith(" heads")
    (small,) = kept("mla_q", axes=axes, device="cpu")["nano-random"]
    assert 96 <= small.count * small.steps < 96 + small.count


def test_what_every_layer_gives_stands_side_by_side_and_is_the_last_steps() -> None:
    op, other = REGISTRY.get("mla_out_gate"), REGISTRY.get("oproj_partial")
    problem = op.problem("nano", 4, ARCH)
    heads = KeptHeads(StockBinder())
    layers = [heads.bind(op, problem, f"layers.{i}.value") for i in (3, 7)]
    beside = heads.bind(other, other.problem("nano", 4, ARCH), "layers.3.oproj")
    for seed in (1, 2):
        given = [op.inputs(problem, "normal", 10 * seed + i, "cpu") for i in range(2)]
        gave = [layer(values)["y"] for layer, values in zip(layers, given, strict=True)]
        beside(other.inputs(other.problem("nano", 4, ARCH), "normal", 1, "cpu"))
        assert torch.equal(heads.rows(3), torch.cat(gave, dim=1)[:3])


def test_the_query_of_one_head_with_a_tile_too_large_is_seen_there_and_nowhere_else() -> None:
    result = judge("reordered", op="mla_q", mutants=MUTANTS, sizes=only(rows=12, least=3, depth=4))
    assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message
    seen = result.evidence["mutants"]["mla_q tile_scale"]
    assert seen["refused"] and "heads eager: the attention's outputs are surely" in seen["first"]
    bad = judge("head_tile", op="mla_q", mutants=MUTANTS, sizes=only(rows=12, least=3, depth=4))
    assert (bad.status, bad.code) == (Status.FAIL, "fullmodel.logits")
    said = bad.message.split("; ")
    assert all(line.startswith("filled nano-random+first4 t4 heads eager: ") for line in said), said
    assert "columns 0 to 127 of the attention's outputs" in said[-1]


# --- the rules, on numbers written by hand


def rows(hidden: Sequence[float], blocks: Sequence[float] = (1.0, 1.0, 1.0), steps: int = 6) -> Rows:
    """These distances of the kept outputs, `steps` rows of a sequence; all else is 1."""
    x = torch.tensor(hidden, dtype=torch.float64)
    ones, yes = torch.ones_like(x), torch.ones(len(x), dtype=torch.bool)
    table = torch.tensor(blocks, dtype=torch.float64).repeat(len(x), 1)
    return Rows(torch.arange(len(x)) // steps, ones, x, ones, ones, table, yes, yes)


ONE = Measured(rows([1.0] * 6), rows([1.0] * 6), None)


def judged(heads: Rows, stock: Rows, exercise: Exercise = KEEPS) -> Finding:
    plain = rows([1.0] * len(heads.hidden), steps=int((heads.sequence == 0).sum()))
    sides = (Measured(plain, plain, None, side) for side in (heads, stock))
    return rules_rows.judge([exercise], *({(exercise.name, EAGER): side} for side in sides))


def said(heads: Rows, stock: Rows) -> list[str]:
    found = judged(heads, stock)
    assert {b.code for b in found.breaches} <= {LOGITS}
    return [b.message.removeprefix(f"{PLACE}: ") for b in found.breaches]


def test_what_the_attention_gives_is_held_to_the_limits_of_hidden_rows() -> None:
    more, usual = 1 + 1e-9, rows([1.0] * 6)
    assert said(rows([limits.ALONE] * 6), usual) == []
    (line,) = said(rows([limits.ALONE * more] * 6), usual)
    assert line == "the attention's outputs are 2.50x as far from float64 as stock's, allowed 2.50x"
    assert said(rows([1.0] * 6, (1.0, limits.BLOCK_SINGLE, 1.0)), usual) == []
    (line,) = said(rows([1.0] * 6, (1.0, limits.BLOCK_SINGLE * more, 1.0)), usual)
    assert line.startswith("beside the others, columns 128 to 255 of the attention's outputs are 1.80x")
    pairs = rows([1.0] * 12, steps=2)
    assert said(rows([limits.SINGLE] * 12, steps=2), pairs) == []
    (line,) = said(rows([limits.SINGLE * more] * 12, steps=2), pairs)
    assert line == "the attention's outputs are surely 1.60x as far from float64 as stock's, allowed 1.60x"


def test_the_numbers_of_what_the_attention_gives_are_in_the_evidence_where_it_is_kept() -> None:
    found = judged(rows([4.0] * 6, (2.0, 2.0, 2.2)), rows([2.0] * 6)).numbers["exercises"][PLACE]
    assert found["heads"] == {"outputs": [2.0, 0.0, float("inf")], "stock": 2.0, "block": [2, 1.1]}
    assert found["hidden"] == [1.0, 0.0, float("inf")]
    bare = rules_rows.judge([KEEPS], {(KEEPS.name, EAGER): ONE}, {(KEEPS.name, EAGER): ONE})
    assert "heads" not in bare.numbers["exercises"][PLACE]


def test_the_attentions_outputs_are_measured_where_an_exercise_keeps_them() -> None:
    def side(exercise: Exercise, **more: torch.Tensor) -> Left:
        gen = torch.Generator().manual_seed(1)
        plain = {n: torch.randn((3, 2, 8), generator=gen, dtype=torch.float64) for n in ("logits", "hidden")}
        record = Record(exercise.name, EAGER, {**plain, **more}, (), {})
        return Left("done", "", {}, {(exercise.name, EAGER): record})

    ones = torch.ones(3, 2, 256, dtype=torch.float64)
    tilted = ones.clone()
    tilted[:, 1, 128:] *= 1.5
    (found,) = rules_rows.measure([KEEPS], side(KEEPS, heads=tilted), side(KEEPS, heads=ones), "cpu").values()
    assert found.heads is not None and found.rows.hidden.tolist() == [0.0] * 6
    assert found.heads.blocks.tolist() == [[0.0, 0.0], [0.0, 0.5]] * 3
    assert found.heads.hidden.tolist() == pytest.approx([0.0, 0.5 / 2**0.5] * 3)
    other = replace(KEEPS, heads=False)
    (bare,) = rules_rows.measure([other], side(other, heads=tilted), side(other), "cpu").values()
    assert bare.heads is None
