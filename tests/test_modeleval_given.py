"""Experts by token: the same on all sides, skewed as a router's choice, weighed by each side's own logits."""

from pathlib import Path

import pytest
import torch
from support.decoders import relative

from kgen.gates.modeleval import perform
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import EAGER, FORCED, Exercise, Seeds, Way
from kgen.gates.modeleval.given import ROUTER, GivenExperts
from kgen.gates.modeleval.loaded import Seating
from kgen.gates.modeleval.plan import TABLE, plan
from kgen.gates.modeleval.stage import Stage
from kgen.model.bind import OpCall, StockBinder
from kgen.model.decoder.session import Session
from kgen.ops import PACK, REGISTRY

ARCH, ROWS, STEPS = "sm_90a", 8, 6
SEEDS = Seeds(1, 2, 3)
GIVEN = Exercise(FORCED, Way("nano-random"), ROWS, ROWS, STEPS, (EAGER,), given=True)
CHOSEN = Exercise(FORCED, Way("nano-random"), ROWS, ROWS, STEPS, (EAGER,))


class Watched:
    """Stock, with all that the routers' seats were given and the experts' seats saw."""

    def __init__(self) -> None:
        self.inner = StockBinder()
        self.routed: list[torch.Tensor] = []
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def bind(self, op: object, problem: object, seat: str) -> OpCall:
        call = self.inner.bind(op, problem, seat)  # type: ignore[arg-type]

        def watched(values):  # type: ignore[no-untyped-def]
            got = call(values)
            if op.name == ROUTER:  # type: ignore[attr-defined]
                self.routed.append(got["ids"])
            if op.name == "moe_experts":  # type: ignore[attr-defined]
                self.seen.append((values["ids"], values["w"]))
            return got

        return watched


def stage(side: str, seeds: Seeds = SEEDS, others: object = None) -> Stage:
    seating = Seating() if others is None else Seating(others=others)  # type: ignore[arg-type]
    return Stage(REGISTRY, seating, "cpu", ARCH, seeds, Path("none"), side, exact=side == "float64")


def rows(side: str, exercise: Exercise, seeds: Seeds = SEEDS) -> torch.Tensor:
    (done,) = perform.forced(stage(side, seeds), exercise, EAGER)
    return done.tensors["hidden"].double()


def test_the_experts_of_a_token_are_the_same_whoever_computes_and_wherever_it_stands() -> None:
    watched = Watched()
    batch = stage("stock", others=watched).prepare(GIVEN, EAGER, 8)
    ids = torch.tensor([3, 3, 9, 3, 5, 9, 0, 1])
    batch.verify(ids[:, None])
    layers = len(watched.seen)
    assert layers == 7 and all(torch.equal(chosen[0], chosen[1]) for chosen, _ in watched.seen)
    assert all(torch.equal(chosen[2], chosen[5]) for chosen, _ in watched.seen)
    again = stage("stock", others=(other := Watched())).prepare(GIVEN, EAGER, 8)
    again.verify(ids.flip(0)[:, None])
    assert all(torch.equal(a, b.flip(0)) for (a, _), (b, _) in zip(watched.seen, other.seen, strict=True))
    assert not torch.equal(watched.seen[0][0], watched.seen[1][0]), "layers differ"


def test_the_seats_own_router_runs_and_is_overruled() -> None:
    watched = Watched()
    batch = stage("stock", others=watched).prepare(GIVEN, EAGER, 8)
    batch.verify(torch.arange(ROWS)[:, None])
    assert len(watched.routed) == len(watched.seen) == 7
    assert not any(torch.equal(own, seen) for own, (seen, _) in zip(watched.routed, watched.seen, strict=True))


def test_weights_are_renormalised_scores_of_the_sides_own_logits() -> None:
    watched = Watched()
    batch = stage("stock", others=watched).prepare(GIVEN, EAGER, 8)
    batch.verify(torch.arange(ROWS)[:, None])
    for chosen, w in watched.seen:
        assert chosen.dtype is torch.int32 and w.dtype is torch.bfloat16 and chosen.shape == w.shape == (ROWS, 4)
        assert torch.allclose(w.float().sum(1), torch.ones(ROWS), atol=0.02) and bool((w > 0).all())
        assert all(len(set(row)) == 4 for row in chosen.tolist()), "distinct experts"
    assert len({tuple(w.flatten().tolist()) for _, w in watched.seen}) == 7


def test_the_choice_is_as_skewed_as_the_bias_says() -> None:
    model = stage("stock")
    weights = model.weights(GIVEN)
    op = REGISTRY.get(ROUTER)
    binder = GivenExperts(StockBinder(), weights, 1, "cpu")
    ids = binder._table("layers.1", op.sizes(op.problem("nano", ROWS, ARCH, {}))["top_k"])
    counts = torch.bincount(ids.flatten().long(), minlength=16).double()
    bias = weights["layers.1.moe.bias"].double()
    assert ids.shape == (512, 4) and float(torch.corrcoef(torch.stack([counts, bias]))[0, 1]) > 0.8


def test_nothing_is_followed_before_a_session_is() -> None:
    model = stage("stock")
    binder = GivenExperts(StockBinder(), model.weights(GIVEN), 1, "cpu")
    op = REGISTRY.get(ROUTER)
    problem = op.problem("nano", ROWS, ARCH, {})
    call = binder.bind(op, problem, "layers.1.router")
    with pytest.raises(AssertionError, match="no session"):
        call(op.inputs(problem, "normal", 1, "cpu"))


def test_the_tokens_of_a_session_stay_in_one_place() -> None:
    batch = stage("stock").prepare(GIVEN, EAGER, 8)
    session: Session = batch.session
    at = session.tokens.data_ptr()
    batch.verify(torch.full((ROWS, 1), 7))
    assert session.tokens.data_ptr() == at and session.tokens.tolist() == [7] * ROWS


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.deep)])
def test_no_row_is_far_from_float64_where_experts_are_given(seed: int) -> None:
    """With own choices some row takes another expert, and is ten times farther than the usual one."""
    seeds = Seeds(seed, 2, 3)
    worst, apart = {}, {}
    for exercise in (GIVEN, CHOSEN):
        stock, exact = rows("stock", exercise, seeds), rows("float64", exercise, seeds)
        far = ((stock - exact).norm(dim=-1) / exact.norm(dim=-1)).flatten()
        worst[exercise.given] = float(far.max() / far.median())
        apart[exercise.given] = relative(stock, exact)
    assert worst[True] < 3
    assert worst[True] < worst[False] or worst[False] < 3
    assert apart[True] < 0.05


@pytest.mark.parametrize(("op", "given"), [("moe_shared", True), ("moe_experts", True), (ROUTER, False)])
def test_a_router_under_judgement_chooses_itself(op: str, given: bool) -> None:
    found = REGISTRY.get(op)
    problems = [found.problem(d, b, ARCH) for d in ("k3-tp8", "nano") for b in PACK.bins]
    made = plan(problems, PACK.small, TABLE["cuda"], "cuda", Census(REGISTRY, ARCH))
    assert {e.given for e in made.models["slice-tp8"]} == {given}
    assert {e.given for e in made.models["nano"]} == {False}, "the trained model always chooses itself"
