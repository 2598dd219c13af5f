"""A layer that is timed with a recorded trace sends its rows to the recorded experts, and its page says so.

The trace is one that the stand-in of vLLM's model records.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.loops import called
from support.routing import recorded_trace

from kgen.gates.layer import __main__ as command
from kgen.gates.layer import check, point
from kgen.gates.layer import record as records
from kgen.gates.layer import run as running
from kgen.gates.layer.bench import build, new_bench
from kgen.gates.layer.check import Refused
from kgen.gates.layer.columns import UNFUSED, Column
from kgen.gates.layer.markdown import markdown
from kgen.gates.layer.points import ANY_CONTEXT, Job, Point
from kgen.gates.layer.record import LayerRecord
from kgen.gates.layer.traced import LIFT, Noting, fitted, follow, unfit, words
from kgen.gates.routing import Recorded, recorded
from kgen.model.bind import StockBinder
from kgen.model.decoder.config import KDA
from kgen.ops import REGISTRY

JOB = Job(Point("nano", KDA, 8, ANY_CONTEXT), device="cpu", repetitions=2)  # states that each call changes


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(recorded_trace(tmp_path_factory.mktemp("trace") / "t.jsonl"))


def test_every_set_of_a_layer_routes_its_rows_as_recorded(trace: Recorded) -> None:
    bench = new_bench(JOB, REGISTRY, trace)
    layers = build(bench, [Column(UNFUSED, StockBinder, False)])
    plain = new_bench(JOB, REGISTRY)
    assert len(layers) == len(bench.sets) == len(plain.sets) > 1
    for number, (layer, drawn) in enumerate(zip(layers, bench.sets, strict=True)):
        wanted = [set(row) for row in trace.ids(8, JOB.seed + number)]
        check.step(layer, drawn)
        assert [set(row) for row in check.chosen(layer).tolist()] == wanted
        others = [n for n in drawn.weights if n != "moe.w_router"]
        assert all(torch.equal(drawn.weights[n], plain.sets[number].weights[n]) for n in others)


def test_the_fit_lifts_the_wanted_experts_by_the_smallest_change_of_the_weights() -> None:
    """Two rows along two axes: the change lies in their plane, and logits are read off by hand."""
    weight = torch.zeros((3, 4))
    weight[:, 0], weight[:, 3] = torch.tensor([1.0, -0.5, 0.0]), 7.0  # no row looks along the last axis
    rows = torch.zeros((2, 4))
    rows[0, 0], rows[1, 1] = 1.0, 2.0
    found = fitted(weight, rows, torch.tensor([[1], [2]]))
    # row 0 had logits 1, -0.5, 0 and wants expert 1; row 1 had 0, 0, 0 and wants expert 2
    assert (rows @ found.T).tolist() == [[-1.0, LIFT + 0.5, 0.0], [0.0, 0.0, LIFT]]
    assert torch.equal(found[:, 2:], weight[:, 2:])


def test_a_router_that_goes_elsewhere_is_refused(trace: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    from kgen.gates.layer import traced

    bench = new_bench(JOB, REGISTRY)
    layers = build(bench, [Column(UNFUSED, lambda: Noting(StockBinder()), False)])
    monkeypatch.setattr(traced, "fitted", lambda weight, rows, wanted: weight)
    with pytest.raises(Refused, match="does not keep to the recorded experts"):
        follow(layers[0], bench.sets[0], trace.ids(8, 1), 1)


def test_the_command_measures_with_a_trace_and_its_page_says_which(
    trace: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a process of its own would be started with is done in this one."""
    monkeypatch.setattr(running, "_process", lambda words, log, held: f"status {point.main(words[-3:])}")
    out = tmp_path / "l.json"
    asked = ["--device", "cpu", "--layer", "kda", "--tokens", "1", "--repetitions", "2", "--out", str(out)]
    with_trace = [*asked, "--routing-trace", str(trace.path)]
    assert command.main(with_trace) == command.MEASURED, capsys.readouterr().err
    (found,) = records.read(out).points
    assert found.job.trace == trace.sha256 and found.job.routing == words(trace)
    page = out.with_suffix(".md").read_text()
    said = f"routing trace {trace.sha256[:12]} (210 tokens, 3 layers)"
    assert page.splitlines()[0] == f"# Decode layers: {said}"
    assert str(trace.path) not in out.read_text(), "places of this machine are no part of a record"
    assert command.main(with_trace) == command.MEASURED and "done before" in capsys.readouterr().err
    drawn = replace(found, job=Job(replace(found.job.point, tokens=2), device="cpu"))
    both = markdown(LayerRecord((found, drawn))).splitlines()[0]
    assert both == f"# Decode layers: synthetic routing, {said}"
    assert markdown(LayerRecord((drawn,))).startswith("# Decode layers: synthetic routing\n")
    assert "trace" not in json.loads(json.dumps(records.to_json(drawn.job))), "as jobs were written before"


def test_a_trace_of_other_experts_or_too_few_tokens_is_one_line(
    trace: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unfit(trace, ["nano"], [64]) == ""
    assert unfit(trace, ["tp8"], [1]) == "tp8: the trace is of 4 of 16 experts a token, here they are 16 of 896"
    short = recorded_trace(tmp_path / "s.jsonl", 3)
    for words_given in (["--device", "cpu", "--tokens", "8"], ["--device", "cpu", "--tokens", "8", "--layer", "mla"]):
        given = [*words_given, "--routing-trace", str(short), "--out", str(tmp_path / "never.json")]
        assert command.main(given) == command.USAGE
        caught = capsys.readouterr().err
        assert "no layer with 8 tokens: record more of them" in caught and caught.count("\n") == 1
        assert called(["bench-layer", *given]) == 2
        caught = capsys.readouterr().err
        assert "no layer with 8 tokens: record more of them" in caught and caught.count("\n") == 1
    both = ["bench-layer", "--device", "cpu", "--routing", "skewed", "--routing-trace", str(short)]
    assert called(both) == 2 and "give one of them" in capsys.readouterr().err
    assert called(["bench-layer", "--device", "cpu", "--routing-trace", str(tmp_path / "none")]) == 2
    assert "none cannot be read" in capsys.readouterr().err
