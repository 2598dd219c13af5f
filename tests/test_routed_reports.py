"""The first line of every report of an op that routes says where the experts came from; a trace travels in a kit.

The trace is one that the stand-in of vLLM's model records.
"""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.kits import KEY, RUN, make
from support.loops import called, recording, source
from support.routing import recorded_trace

from kgen.gates import kit_host, kit_units, perf
from kgen.gates.kit import Contents, KitCandidate, KitError, build
from kgen.gates.kit_units import TRACE, Unit
from kgen.gates.routing import facts, recorded
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status
from kgen.report import Document, as_json, markdown, read
from kgen.report.junit import junit
from kgen.report.page import of_run
from kgen.serve.routing_trace import Writer
from kgen.store import Runs

EXPERTS, SHARED = REGISTRY.get("moe_experts"), REGISTRY.get("moe_shared")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_trace(tmp_path_factory.mktemp("trace") / "t.jsonl")


def swept(doc: Document, *traces: object) -> Document:
    """The run as one of routed experts, whose sweep had these traces."""
    assert doc.subject is not None
    found: dict[str, Any] = {"routing": list(traces)} if traces else {}
    result = GateResult("perf-sweep", Status.PASS, "perf.pass", "it wins", found)
    return replace(doc, op=EXPERTS, subject=replace(doc.subject, results=(result,)))


def first_lines(doc: Document) -> dict[str, str]:
    """What stands first in each form, JSON but for its schema."""
    page = of_run(doc)
    return {
        "md": next(line for line in markdown(doc).splitlines() if line and not line.startswith("<!--")),
        "html": page[page.index("<h1>") : page.index("</h1>")],
        "json": json.dumps(list(as_json(doc).items())[1]),
        "junit": str(ElementTree.fromstring(junit(doc)).get("name")),
    }


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder = tmp_path_factory.mktemp("runs")
    recording(folder, [source("a")])
    return read(Runs(folder).find("latest"), SHARED)


def test_reports_say_synthetic_routing_without_a_trace_and_which_one_with_it(document: Document, trace: Path) -> None:
    given = facts(recorded(trace))
    words = f"routing trace {given['sha256'][:12]} (210 tokens, 3 layers)"
    for lines, said in (
        (first_lines(swept(document)), "synthetic routing"),
        (first_lines(swept(document, given)), words),
    ):
        assert all(said in line for line in lines.values()), lines
    both = first_lines(swept(document, given)).values()
    assert all(f"synthetic routing, and {words}" in line for line in both)  # a trace is one scenario of many
    two = first_lines(swept(document, given, {**given, "sha256": "e" * 64}))
    assert all(words in line and f"routing trace {'e' * 12}" in line for line in two.values())


def test_reports_of_an_op_that_does_not_route_say_nothing_of_it(document: Document) -> None:
    lines = first_lines(document)
    assert lines.pop("json") == '["routing", ""]' and all("routing" not in line for line in lines.values())


@pytest.mark.parametrize(
    "named",
    [
        *(3, {}, "x", {"sha256": "a"}, None),
        {"sha256": "a" * 64, "tokens": "1\n\n# x", "layers": 1},
        {"sha256": "a" * 64, "tokens": 1, "layers": True},
        {"sha256": "\x1b[2J", "tokens": 1, "layers": 1},
    ],
)
def test_what_foreign_evidence_calls_a_trace_stops_no_report(document: Document, named: object) -> None:
    line = first_lines(swept(document, named))["md"]
    assert "synthetic routing" in line and "and routing trace" not in line
    odd = GateResult("perf-sweep", Status.PASS, "perf.pass", "", {"routing": named})
    assert document.subject is not None
    doc = replace(document, op=EXPERTS, subject=replace(document.subject, results=(odd,)))
    assert "synthetic routing" in first_lines(doc)["md"]


def test_a_run_without_a_candidate_says_it_too(document: Document) -> None:
    line = first_lines(replace(document, op=EXPERTS, subject=None))["md"]
    assert line.endswith(": nothing was proposed; synthetic routing")


# ---- the kit


def wide(path: Path, tokens: int = 64) -> Path:
    """A trace of the real widths: 16 of 896 experts."""
    with Writer(path, 896, 16) as made:
        made.add(1, [[(56 * slot + 7 * token) % 896 for slot in range(16)] for token in range(tokens)])
    return path


def packed(folder: Path, trace: Path, cache: Path, *ops: Any) -> dict[str, Any]:
    """The table of contents of a kit for these ops, and the kit unpacked beside it."""
    made = {op.name: make(folder, 8, op=op) for op in ops}
    runs = [Contents(op, f"{RUN}-{op.name}", KEY, (KitCandidate("c" * 64, (made[op.name],)),)) for op in ops]
    build(runs, folder / "kit.pyz", cache, trace=recorded(trace), pythons=(), flavours=())
    with zipfile.ZipFile(folder / "kit.pyz") as archive:
        info = json.loads(archive.read("kit.json"))
        for line in info["files"]:
            if not line["path"].startswith("lib/") and not line["xz"]:
                (folder / line["path"]).parent.mkdir(exist_ok=True)
                (folder / line["path"]).write_bytes(archive.read(f"blobs/{line['blob']}"))
    return dict(info)


def test_a_trace_travels_in_a_kit_and_is_the_one_that_its_sweep_is_given(
    kit_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = wide(tmp_path / "t.jsonl")
    info = packed(tmp_path, trace, kit_cache, EXPERTS, SHARED)
    assert info["routing"] == facts(recorded(trace)) and (tmp_path / TRACE).read_bytes() == trace.read_bytes()
    assert kit_host.main(["--plan"], str(tmp_path), info) == 2, "no GPU fits its kernels here"
    assert "routing" not in capsys.readouterr().err
    given = {}

    def told(op: Any, artefacts: Any, *, trace: Any, **rest: Any) -> tuple[GateResult, tuple[()], dict[str, Any]]:
        given[op.name] = trace
        return GateResult("perf-sweep", Status.SKIP, "perf.no_gpu", ""), (), {}

    monkeypatch.setattr(perf, "run", told)
    run = kit_units.talking(print, recorded(tmp_path / TRACE))["perf"]
    for op in (EXPERTS, SHARED):
        run(op, Unit("perf", "perf-sweep", "c" * 64, ()), tmp_path, 1.0)
    assert given == {"moe_experts": recorded(tmp_path / TRACE), "moe_shared": None}
    (tmp_path / TRACE).write_text("other")
    assert kit_host.main(["--plan"], str(tmp_path), info) == 2
    assert "not the routing trace that it was" in capsys.readouterr().err


def test_a_kit_is_refused_a_trace_that_no_run_of_it_can_use(trace: Path, kit_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(KitError, match="moe_shared is not told which experts"):
        packed(tmp_path, trace, kit_cache, SHARED)
    with pytest.raises(KitError, match="the trace is of 4 of 16 experts a token, here they are 16 of 896"):
        packed(tmp_path, trace, kit_cache, EXPERTS)
    with pytest.raises(KitError, match="no layer with 8 tokens"):
        packed(tmp_path, wide(tmp_path / "short.jsonl", 7), kit_cache, EXPERTS)


# ---- the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gate", "perf-sweep", "F", "--op", "moe_experts", "--routing-trace", "none"], "none cannot be read"),
        (["gate", "compile", "F", "--op", "moe_experts", "--routing-trace", "T"], "--routing-trace is for perf-sweep"),
        (["gate", "perf-sweep", "F", "--op", "moe_shared", "--routing-trace", "T"], "moe_shared is not told"),
        (["gate", "perf-sweep", "F", "--op", "moe_experts", "--routing-trace", "T"], "here they are 16 of 896"),
        (["kit", "latest", "--routing-trace", "F"], "is no routing trace"),
    ],
)
def test_a_trace_that_has_no_place_is_one_line_before_anything_is_built(
    words: list[str],
    said: str,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "F").write_text("x = 1\n")
    (tmp_path / "T").write_bytes(trace.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KGEN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("KGEN_CACHE", str(tmp_path / "cache"))
    recording(tmp_path / "runs", [source("a")])
    assert called(words) == 2
    caught = capsys.readouterr()
    assert said in caught.err and caught.err.count("\n") == 1 and caught.out == ""
    assert not (tmp_path / "cache").exists()
