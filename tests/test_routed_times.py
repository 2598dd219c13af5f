"""What is timed with a recorded routing trace went to recorded experts, says so, and is refused where it cannot.

The trace is one that the stand-in of vLLM's model records. The sweep's runner works in this process.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.routing import recorded_trace

from kgen.gates import perf, perf_judge, routing, timing
from kgen.gates.perf_judge import Findings
from kgen.gates.routing import RECORDED, recorded
from kgen.gates.runner import perf as job_side
from kgen.gates.runner.contestants import rotation, set_values
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.out import Out
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH
from kgen.ops import REGISTRY
from kgen.records import PerfPoint
from kgen.serve.routing_trace import RoutingTrace, TraceError, read

FEW = {GRAPH: 1, CHAINED: 1, COLD: 1}
EXPERTS = REGISTRY.get("moe_experts")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_trace(tmp_path_factory.mktemp("trace") / "t.jsonl")


def rows_of(ids: object) -> list[tuple[int, ...]]:
    assert isinstance(ids, torch.Tensor)
    return [tuple(row) for row in ids.tolist()]


def test_the_experts_of_a_set_are_those_of_tokens_of_one_layer_and_all_else_is_as_drawn(trace: Path) -> None:
    problem, given, layers = EXPERTS.problem("nano", 16, "sm_90a"), recorded(trace), set()
    held = {layer: read(trace).tokens(layer) for layer in read(trace).layers}
    for number in range(12):
        values = set_values(EXPERTS, problem, RECORDED, 5, number, 12, "cpu", given)
        plain = set_values(EXPERTS, problem, "", 5, number, 12, "cpu")
        rows = rows_of(values["ids"])
        assert rows[12:] == [(-1,) * 4] * 4, "padding has no experts"
        (layer,) = [k for k, tokens in held.items() if all(rows[:12].count(r) <= tokens.count(r) for r in rows[:12])]
        layers.add(layer)
        assert values["ids"].dtype is torch.int32  # type: ignore[union-attr]
        assert all(torch.equal(torch.as_tensor(values[n]), torch.as_tensor(plain[n])) for n in plain if n != "ids")
        again = set_values(EXPERTS, problem, RECORDED, 5, number, 12, "cpu", given)
        assert torch.equal(again["ids"], values["ids"])  # type: ignore[arg-type]
    assert layers == set(held) and len(held) == 3, "no layer is left out"


def test_only_an_op_that_is_told_of_experts_takes_a_trace_and_only_one_that_fits(trace: Path, tmp_path: Path) -> None:
    given = recorded(trace)
    assert routing.unfit(EXPERTS, [EXPERTS.problem("nano", 64, "")], given) == ""
    why = routing.unfit(EXPERTS, [EXPERTS.problem("k3-tp8", 1, "")], given)
    assert why.endswith("the trace is of 4 of 16 experts a token, here they are 16 of 896")
    short = recorded(recorded_trace(tmp_path / "s.jsonl", 7))
    assert routing.unfit(EXPERTS, [EXPERTS.problem("nano", 4, "")], short) == ""
    assert "no layer with 8 tokens: record more" in routing.unfit(EXPERTS, [EXPERTS.problem("nano", 8, "")], short)
    with pytest.raises(TraceError, match="no layer with 8 tokens"):
        short.ids(8, 1)
    router = REGISTRY.get("moe_router")
    assert "is not told which experts" in routing.unfit(router, [router.problem("nano", 1, "")], given)
    assert {name for name, op in REGISTRY.ops.items() if routing.routes(op)} == {"moe_experts", "moe_router"}


def test_a_trace_is_known_by_its_bytes(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = recorded(trace)
    assert recorded(trace, given.sha256) == given
    other = tmp_path / "t.jsonl"
    other.write_bytes(trace.read_bytes() + b'{"layer":1,"ids":[[0,1,2,3]]}\n')
    with pytest.raises(TraceError, match="not the routing trace that it was"):
        recorded(other, given.sha256)
    with pytest.raises(TraceError, match=r"none cannot be read: No such file"):
        recorded(tmp_path / "none")
    monkeypatch.setattr(routing, "MOST_BYTES", 10)
    with pytest.raises(TraceError, match=r"keep its first lines only"):
        recorded(trace)


def test_a_trace_that_is_written_while_it_is_read_and_a_folder_are_refused(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TraceError, match="is no file"):
        recorded(tmp_path)
    parse = routing.read

    def grown(path: Path) -> RoutingTrace:
        found = parse(path)
        path.write_bytes(path.read_bytes() + b'{"layer":1,"ids":[[0,1,2,3]]}\n')
        return found

    monkeypatch.setattr(routing, "read", grown)
    copy = tmp_path / "t.jsonl"
    copy.write_bytes(trace.read_bytes())
    with pytest.raises(TraceError, match="is being written: stop the recording"):
        recorded(copy)


def test_evidence_names_a_trace_only_where_something_was_timed_with_it(trace: Path) -> None:
    given = recorded(trace)
    jobs = {
        n: perf.make_jobs(EXPERTS, [stock_spec(EXPERTS.problem("nano", n, "sm_90a"))], (), FEW, True) for n in (8, 16)
    }
    scenarios = {n: {j.scenario for j in made} for n, made in jobs.items()}
    assert routing.RECORDED in scenarios[8] and routing.RECORDED not in scenarios[16]
    point = PerfPoint(
        "p", 8, "graph", "t", 1.0, {"stock": 2.0}, "stock", 0.5, 0.4, 0.6, 0.1, 0.1, 3, "win", scenario=routing.RECORDED
    )
    assert perf._recorded(Findings(points=[point])) and given.tokens == 210
    assert not perf._recorded(Findings(points=[replace(point, scenario="skewed")]))


def test_the_words_say_which_trace_or_that_routing_is_synthetic(trace: Path) -> None:
    found = routing.facts(recorded(trace))
    assert found == {"sha256": recorded(trace).sha256, "tokens": 210, "layers": 3, "experts": 16, "top_k": 4}
    assert routing.said([found]) == f"routing trace {found['sha256'][:12]} (210 tokens, 3 layers)"
    assert routing.said([]) == "synthetic routing"


def test_a_sweep_with_a_trace_times_it_as_one_more_scenario_and_judges_it_on_the_same_experts(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SETTLE", 0)
    monkeypatch.setattr(timing, "MIN_CALLS", 2)
    given, spec = recorded(trace), stock_spec(EXPERTS.problem("nano", 8, "sm_90a"))
    plain = [j.scenario for j in perf.make_jobs(EXPERTS, [spec], (), FEW)]
    every = perf.make_jobs(EXPERTS, [spec], (), FEW, traced=True)
    assert [j.scenario for j in every] == [*plain, RECORDED]
    told = json.loads(json.dumps(perf.make_job(EXPERTS, every[-1:], Path("/nowhere"), "cpu", given)))
    out = Out(tmp_path)
    out.finish(job_side.run(told, out))
    records = tuple(json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines())
    ended = Outcome("done", "", "", tmp_path, records)
    found = perf_judge.judge_outcome(EXPERTS, every[-1:], ended, "cpu", None, given)
    assert found.wrong == [] and {p.scenario for p in found.points} == {RECORDED}
    blind = perf_judge.judge_outcome(EXPERTS, every[-1:], ended, "cpu", None)
    assert blind.wrong, "a judge with other experts finds other numbers"
    told["routing"]["sha256"] = "0" * 64
    with pytest.raises(TraceError, match="not the routing trace that it was"):
        job_side.run(told, Out(tmp_path))


def test_inputs_of_a_traced_rotation_that_a_call_changed_are_named(trace: Path) -> None:
    problem = EXPERTS.problem("nano", 2, "sm_90a")
    turns = rotation(EXPERTS, problem, 3, "cpu", family=RECORDED, trace=recorded(trace))
    assert turns.constants_changed() == []
    turns.sets[1].buffers["ids"].tensor[0, 0] += 1
    assert turns.constants_changed() == ["ids of set 1"]


def test_the_gate_refuses_a_trace_that_does_not_fit_before_it_runs_anything(trace: Path) -> None:
    spec = stock_spec(REGISTRY.get("moe_shared").problem("nano", 1, "sm_90a"))
    with pytest.raises(ValueError, match="moe_shared is not told which experts"):
        perf.run_specs(
            REGISTRY.get("moe_shared"), [spec], cache=Path("/nowhere"), device="cpu", dims=("nano",),
            trace=recorded(trace),
        )  # fmt: skip
