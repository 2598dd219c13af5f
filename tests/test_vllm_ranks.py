"""Ranks of tensor parallelism: they vote alike whatever each has found, and use only what all can use."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.vllm_engine import Engine, host
from support.vllm_sets import BINS, OP, compiled, make_set, prepared, settings
from support.vllm_standin import KimiLinearForCausalLM, configuration

from kgen.serve.vllm.guards import Refused
from kgen.serve.vllm.host import Host, over_ranks
from kgen.serve.vllm.plan import Plan, plan_for
from kgen.store import SetPath


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return compiled(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, objects: dict[str, bytes]) -> SetPath:
    prepared(monkeypatch, tmp_path, tmp_path / "cache")
    return make_set(tmp_path / "set", dict.fromkeys(BINS, objects["right"]))


def ranks(plans: list[Callable[[Host], Any]]) -> list[Any]:
    """Each in a thread of its own, agreeing with the others by the minimum; a rank that votes less would hang."""
    tables: list[torch.Tensor | None] = [None] * len(plans)
    barrier = threading.Barrier(len(plans), timeout=250)
    found: list[Any] = [None] * len(plans)

    def reducer(rank: int) -> Callable[[torch.Tensor], None]:
        def reduce_min(votes: torch.Tensor) -> None:
            tables[rank] = votes.clone()
            barrier.wait()
            votes.copy_(torch.stack([t for t in tables if t is not None]).amin(0))
            barrier.wait()

        return reduce_min

    def one(rank: int) -> None:
        of = replace(host(Engine()), agree=over_ranks(reducer(rank)), rank=rank, ranks=len(plans))
        try:
            found[rank] = plans[rank](of)
        except ValueError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(r,)) for r in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def planned(config: Any, spoil: Callable[[Any], None] = lambda model: None) -> Callable[[Host], Plan]:
    def make(of: Host) -> Plan:
        plan = plan_for(config, of)
        assert plan is not None
        model = KimiLinearForCausalLM(vllm_config=None)
        spoil(model)
        plan.seat(model)
        plan.check_caches()
        return plan

    return make


def reasons(plan: Plan) -> list[str]:
    return [str(r) for r in plan.refusals]


def test_what_one_rank_refuses_no_rank_uses(target: SetPath) -> None:
    def spoil(model: Any) -> None:
        model.model.layers[1].block_sparse_moe.shared_experts.gemm_rs_ar = object()

    config = configuration(kgen=settings(target))
    first, second = ranks([planned(config), planned(config, spoil)])
    assert first.kernels == second.kernels == {}
    assert reasons(first) == [f"{OP}: {b} tokens: another rank refuses it (loaded weights)" for b in BINS]
    assert reasons(second) == [f"{OP}: layer 1: needs no GEMM fused with an all-reduce (loaded weights)"]


def test_ranks_that_read_different_sets_use_what_both_hold(target: SetPath, objects: dict[str, bytes]) -> None:
    fewer = make_set(target.path.parent / "fewer", {8: objects["right"]})
    empty = SetPath(target.path.parent / "nowhere")
    both = ranks([planned(configuration(kgen=settings(s))) for s in (target, fewer)])
    assert [sorted(p.kernels[OP].by_bin) for p in both] == [[8], [8]]
    alone = ranks([planned(configuration(kgen=settings(s))) for s in (target, empty)])
    assert [p.kernels for p in alone] == [{}, {}]
    assert reasons(alone[0]) == [f"{OP}: another rank refuses it (configuration)"]


def test_under_refuse_every_rank_stops(target: SetPath) -> None:
    fine = configuration(kgen=settings(target, fallback="refuse"))
    other = configuration(kgen=settings(target, fallback="refuse"))
    other.lora_config = object()
    found = ranks([planned(fine), planned(other)])
    assert [type(f) for f in found] == [Refused, Refused]
    assert "another rank refuses it" in str(found[0]) and "needs no LoRA" in str(found[1])


def test_each_rank_writes_a_record_of_its_own(target: SetPath) -> None:
    for plan in ranks([planned(configuration(kgen=settings(target)))] * 2):
        plan.captured()
    names = sorted(p.name for p in target.path.parent.glob("record*"))
    assert names == ["record.rank0.json", "record.rank1.json"]
