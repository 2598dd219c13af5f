"""The query of latent attention: what the attention gives is kept and judged too where a query's builds sit."""

import pytest
import torch
from support.modeleval import judge, only, stand

from kgen.gates.contract import few_bins
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import FILLED, Exercise
from kgen.gates.modeleval.heads import KeptHeads
from kgen.gates.modeleval.plan import TABLE, plan
from kgen.model.bind import StockBinder
from kgen.ops import PACK, REGISTRY
from kgen.records import Status

ARCH = "sm_90a"
CENSUS = Census(REGISTRY, ARCH)
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
