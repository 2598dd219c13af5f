"""The model evaluation as a whole on CPU stand-ins: honest ones pass, planted faults are refused, each by its code."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.modeleval import (
    MUTANTS,
    SEEDS,
    chain_checkpoint,
    chain_mark,
    checkpoint,
    in_process,
    judge,
    only,
    stand,
    to_spec,
)

from kgen.gates import modeleval
from kgen.gates.modeleval import limits
from kgen.gates.modeleval.perform_tasks import GRAMMAR
from kgen.gates.runner import host
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status, canonical_json, to_json

WHOLE = only(
    drift=(16, 4, 4), filled=(160, 4, 2), free=(4, 8), tasks=(20, 4), long=(64, 4, 2), verify=(3, 2),
    constrained=(2, 4, 6), sampling=(6, 4, 32),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def passed() -> GateResult:
    return judge("reordered", bins=(4, 8), sizes=WHOLE, weights=chain_checkpoint())


def test_a_legitimate_change_of_summation_passes_every_part(passed: GateResult) -> None:
    assert (passed.status, passed.code) == (Status.PASS, "fullmodel.pass"), passed.message
    kinds = {name.split()[0] for model in passed.evidence["models"].values() for name in model}
    assert kinds == {"rows", "free", "tasks", "long", "verify", "constrained", "sampling"}
    rows = passed.evidence["models"]["nano-random"]["rows"]
    assert any(name.startswith("filled") for name in rows["exercises"]) and rows["drift"]


def test_every_mutant_was_refused_on_numbers_alone(passed: GateResult) -> None:
    mutants = passed.evidence["mutants"]
    assert set(mutants) == {f"moe_shared {m}" for m in MUTANTS}
    assert all(m["refused"] and "as far from float64" in m["first"] for m in mutants.values())


def test_the_evidence_says_who_sat_where_and_is_small_plain_json(passed: GateResult) -> None:
    sizes = passed.evidence["attestation"]["nano-random"]
    assert sizes["nano-random+first2 8x1"]["promoted"] == {"moe_shared": 1}
    assert sizes["nano-random+first2 8x1"]["launches_per_step"] == 1
    assert len(canonical_json(to_json(passed))) < 20_000


@pytest.mark.parametrize("op", ["attn_res", "mla_kv_append", "mla_dcp_merge", "oproj_allreduce_residual"])
def test_any_op_can_be_judged(op: str) -> None:
    result = judge("reordered", op=op, sizes=only(rows=16, least=4, depth=4))
    assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message
    (seats,) = {str(s["promoted"]) for s in result.evidence["attestation"]["nano-random"].values()}
    assert op in seats


def test_a_set_of_ops_is_judged_together() -> None:
    ops = ("moe_shared", "kda_in_proj")
    built = [stand("reordered", 4, op=op) for op in ops]
    broken = [stand(m, 4, m, op=op) for op in ops for m in MUTANTS]
    result = modeleval.run(
        [REGISTRY.get(op) for op in ops], built, broken, cache=Path("unused"), device="cpu", seeds=(1, 2, 3),
        to_spec=to_spec, running=in_process, sizes=only(rows=16, least=4), checkpoint=checkpoint(), mark=chain_mark,
    )  # fmt: skip
    assert (result.status, result.code) == (Status.PASS, "fullmodel.pass"), result.message
    seats = result.evidence["attestation"]["nano-random"]["nano-random+first2 4x1"]
    assert seats["promoted"] == {"kda_in_proj": 2, "moe_shared": 1}
    assert len(result.evidence["mutants"]) == 4


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tile_scale", "as far from float64 as stock's"),
        ("drop_last_k", "as far from float64 as stock's"),
        ("wrong_row", "sequence 2 is, at every step,"),
        ("nan", "rows are not finite"),
    ],
)
def test_a_planted_fault_is_refused_on_its_numbers(name: str, says: str) -> None:
    result = judge(name)
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.logits")
    assert says in result.message


def test_a_fault_in_wide_batches_only_is_seen_there() -> None:
    result = judge("wide_only", bins=(1, 16), sizes=only(rows=4, least=3))
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.logits")
    assert result.message.startswith("forced nano-random+first2 t16 ")


def test_a_state_that_grows_is_drift() -> None:
    result = judge("growing_state", op="kda_core", sizes=only(drift=(32, 4, 8)))
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.drift"), result.message
    assert "states at checkpoint" in result.message


def test_attention_that_forgets_a_long_context_is_refused_for_that() -> None:
    result = judge("short_sight", op="mla_decode", sizes=only(filled=(256, 4, 2), rows=8, least=2, depth=4))
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.long_context"), result.message


def test_a_lost_rollback_is_refused_by_decoding_with_drafts() -> None:
    sizes = only(verify=(4, 8), rows=16, least=1)
    result = judge("lost_rollback", op="kda_core", bins=(32,), axes={"q": "4"}, sizes=sizes)
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.speculative"), result.message
    assert "q8" in " ".join(result.evidence["not_run"])


def test_a_failing_call_is_the_candidates_crash() -> None:
    result = judge("raises")
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.crash")
    assert "candidate nano-random" in result.message and "illegal memory access" in result.message


def test_a_candidate_whose_process_dies_fails_alone() -> None:
    @contextmanager
    def outside(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        here = host.running if job["side"] == "candidate" else in_process
        with here(kind, job, **options) as outcome:
            yield outcome

    result = judge("dies", running=outside)
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.crash")
    assert "candidate nano-random" in result.message and "SIGSEGV" in result.message


def test_a_candidate_in_a_process_of_its_own_comes_to_the_same_verdict() -> None:
    @contextmanager
    def outside(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        here = host.running if job["side"] == "candidate" else in_process
        with here(kind, job, **options) as outcome:
            yield outcome

    alone, together = judge("reordered", running=outside), judge("reordered")
    assert alone.evidence["models"] == together.evidence["models"] and alone.passed
    assert alone.evidence["seconds"]["candidate nano-random"]["process"] > 0


@pytest.mark.parametrize(
    ("kernels", "says"), [(["reordered", "reordered"], "expected"), ([], "names no launch"), (["other"], "expected")]
)
def test_launches_that_differ_from_the_build_record_fail(kernels: list[str], says: str) -> None:
    result = judge("reordered", kernels=kernels)
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.attestation")
    assert says in result.message


def test_a_gate_that_lets_a_mutant_pass_is_an_error() -> None:
    result = judge("reordered", mutants=[stand("", 4, "tile_scale"), stand("drop_last_k", 4, "drop_last_k")])
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.insensitive")
    assert "mutant moe_shared tile_scale passed in nano-random" in result.message


@pytest.mark.parametrize(
    "mutants", [[], [stand("tile_scale", 4, "tile_scale")], [stand("raises", 4, m) for m in MUTANTS]]
)
def test_a_gate_without_working_mutants_is_an_error(mutants: list[Any]) -> None:
    result = judge("reordered", mutants=mutants)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.insensitive")


def test_with_weaker_limits_a_planted_fault_would_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SINGLE", "ALONE", "BLOCK_SINGLE", "BLOCK", "SEQUENCE", "FAR"):
        monkeypatch.setattr(limits, name, float("inf"))
    monkeypatch.setattr(
        modeleval.rules_rows, "POOLED", tuple((n, float("inf")) for n, _ in modeleval.rules_rows.POOLED)
    )
    result = judge("tile_scale")
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.insensitive")


def test_without_trained_weights_nothing_passes_but_the_rest_is_measured(tmp_path: Path) -> None:
    result = judge("reordered", weights=tmp_path / "none.safetensors")
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    assert "no trained weights" in result.message
    assert result.evidence["models"]["nano-random"]["rows"]["modes"]


def test_a_fault_outranks_missing_weights(tmp_path: Path) -> None:
    result = judge("tile_scale", weights=tmp_path / "none.safetensors")
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.logits")


def test_a_model_that_answers_nothing_measures_no_tasks() -> None:
    result = judge("reordered", sizes=only(tasks=(5, 4)), mark=lambda item, said: False)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    assert "stock answers no task" in result.message


def test_without_the_grammar_library_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, GRAMMAR, raising=False)
    monkeypatch.setitem(sys.modules, "llguidance", None)  # as where it is not installed
    result = judge("reordered", sizes=only(constrained=(2, 4, 5)))
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    needs = "constrained output needs llguidance, which is not installed"
    assert result.message == f"constrained nano+first2 t4 eager: {needs}"


def test_a_build_that_no_model_seats_is_an_error() -> None:
    axes = [{"logits": "yes"}, {"logits": "no"}]  # a decode step always asks for the logits
    built = [stand("reordered", 4, op="lm_head_argmax", axes=a) for a in axes]
    broken = [stand(m, 4, m, op="lm_head_argmax", axes=axes[0]) for m in MUTANTS]
    result = modeleval.run(
        REGISTRY.get("lm_head_argmax"), built, broken, cache=Path("unused"), device="cpu", seeds=(1, 2, 3),
        to_spec=to_spec, running=in_process, sizes=only(rows=16, least=4), checkpoint=checkpoint(), mark=chain_mark,
    )  # fmt: skip
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete"), result.message
    assert "in no seat of a decode model: lm_head_argmax/nano/t4/sm_90a/logits=no" in result.message


def test_an_op_that_sits_nowhere_is_an_error() -> None:
    result = judge("reordered", op="lm_head_argmax")
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    key = "lm_head_argmax/nano/t4/sm_90a/logits=no"
    said = "no decode model has a seat for the builds of lm_head_argmax: it cannot be evaluated, and so not promoted"
    assert result.message == f"{said} ({key})"


def test_an_op_without_a_seat_is_named_beside_others_that_have_one() -> None:
    ops = ("moe_shared", "lm_head_argmax")
    built = [stand("reordered", 4, op=op) for op in ops]
    broken = [stand(m, 4, m, op=op) for op in ops for m in MUTANTS]
    result = modeleval.run(
        [REGISTRY.get(op) for op in ops], built, broken, cache=Path("unused"), device="cpu", seeds=(1, 2, 3),
        to_spec=to_spec, running=in_process, sizes=only(rows=16, least=4), checkpoint=checkpoint(), mark=chain_mark,
    )  # fmt: skip
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    assert "no decode model has a seat for the builds of lm_head_argmax:" in result.message


def test_the_evidence_says_where_the_time_went_and_processes_are_announced() -> None:
    said: list[str] = []
    result = judge("reordered", say=said.append)
    parts = result.evidence["seconds"]
    assert "judge" in parts and parts["judge"] >= 0
    mine = parts["candidate nano-random"]
    assert {"process", "weights of nano-random/2", "forced nano-random+first2 t4 eager"} <= set(mine)
    assert [line.split(":")[0] for line in said] == [name for name in parts if name != "judge"]
    assert all(line.endswith(" s") for line in said)


Change = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


def altered(side: str, change: Change) -> Any:
    """Processes of one side leave other records."""

    @contextmanager
    def running(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        with in_process(kind, job, **options) as outcome:
            kept = [change(r) if job["side"] == side else r for r in outcome.records]
            yield dataclasses.replace(outcome, records=tuple(r for r in kept if r is not None))

    return running


@pytest.mark.parametrize("side", ["stock", "float64", "candidate", "off", "mutant"])
def test_a_record_that_is_missing_on_any_side_is_no_pass(side: str) -> None:
    running = altered(side, lambda r: None if "t4" in r.get("exercise", "") else r)
    result = judge("reordered", running=running)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete"), result.message
    assert "left no record" in result.message


def _other_tokens(record: Mapping[str, Any]) -> Mapping[str, Any]:
    tensors = record.get("tensors", {})
    return {**record, "tensors": {**tensors, "logits": tensors["hidden"]}} if tensors else record


def _with(record: Mapping[str, Any], **changed: Any) -> Mapping[str, Any]:
    batches = [{**batch, **changed} for batch in record.get("batches", ())]
    return {**record, "batches": batches} if batches else record


def _launched(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return _with(record, counts={stand("", 4).record.problem.key: {"reordered": 1}})


def _profiled(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return _with(record, profiled=[{"sgemm": 4, "reordered(int)": 1}])


@pytest.mark.parametrize(
    ("side", "change", "says"),
    [
        ("off", _other_tokens, "switched off, other tokens come out than in stock"),
        ("off", _launched, "counted 1 x reordered, expected nothing"),
        ("stock", _launched, "counted 1 x reordered, expected nothing"),
        ("stock", _profiled, "shows kernels of the candidate: 1 x reordered"),
    ],
)
def test_a_run_without_the_candidate_has_no_trace_of_it(side: str, change: Change, says: str) -> None:
    result = judge("reordered", running=altered(side, change))
    assert (result.status, result.code) == (Status.FAIL, "fullmodel.attestation")
    assert says in result.message


def test_sides_share_weights_and_tokens_and_draw_with_other_seeds() -> None:
    found: dict[str, Any] = {}

    @contextmanager
    def running(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        found[job["side"]] = job["seeds"]
        with in_process(kind, job, **options) as outcome:
            yield outcome

    judge("reordered", running=running)
    assert {(s["weights"], s["tokens"]) for s in found.values()} == {SEEDS[:2]}
    assert found["stock"]["draws"] != found["candidate"]["draws"]


def test_other_weights_on_one_side_are_an_error() -> None:
    running = altered("stock", lambda r: {**r, "weights": 1} if "model" in r else r)
    result = judge("reordered", running=running)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.incomplete")
    assert "other weights" in result.message


def test_a_stock_process_that_fails_is_not_the_candidates_fault() -> None:
    @contextmanager
    def running(kind: str, job: Mapping[str, Any], **options: float) -> Iterator[host.Outcome]:
        with in_process(kind, job, **options) as outcome:
            yield dataclasses.replace(outcome, status="crashed") if job["side"] == "stock" else outcome

    result = judge("raises", running=running)
    assert (result.status, result.code) == (Status.ERROR, "fullmodel.crash")
    assert result.message.startswith("stock")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_gate_skips_and_names_the_next_command() -> None:
    op = REGISTRY.get("moe_shared")
    result = modeleval.run(op, [stand("", 4)], [], cache=Path("x"), next_command="kgen kit R -o kit.pyz")
    assert (result.status, result.code) == (Status.SKIP, "fullmodel.no_gpu")
    assert result.message.endswith("next: kgen kit R -o kit.pyz")


def test_builds_of_another_op_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="give builds of each op that is judged"):
        modeleval.run(REGISTRY.get("moe_shared"), [stand("", 4, op="attn_res")], [], cache=Path("x"), device="cpu")
