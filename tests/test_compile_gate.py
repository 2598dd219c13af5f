"""The whole compile gate on good candidates: the documented example, other axes, defects, the cache, rebuilds."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kgen.gates.audit.recorder import RecorderError
from kgen.gates.buildcache import Outcome
from kgen.gates.builder.outcome import BuilderError
from kgen.gates.compile import CompileGate, same_code
from kgen.ops import REGISTRY
from kgen.records import BuildRecord, Candidate, Origin, Problem, Status, from_json, sha256_bytes, to_json

ROOT = Path(__file__).parent.parent
OP = REGISTRY.get("moe_shared")
EXAMPLE = Candidate(OP.name, (ROOT / "docs" / "examples" / "moe_shared.py").read_text(), Origin("test"))
NANO = OP.problem("nano", 2, "sm_90a")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def gate(cache: Path) -> Iterator[CompileGate]:
    with CompileGate(OP, cache) as made:
        yield made


def built(gate: CompileGate, problem: Problem = NANO, defect: str = "") -> BuildRecord:
    report = gate.run(EXAMPLE, [problem], defect)
    assert report.result.passed, report.result.message
    return report.artefacts[0].record


def test_the_documented_example_passes_for_all_dims(gate: CompileGate) -> None:
    points = [("k3-tp8", 1, "sm_90a"), ("k3-tp8", 64, "sm_103a"), ("k3-tp16", 8, "sm_90a"), ("nano", 16, "sm_103a")]
    problems = [OP.problem(*point) for point in points]
    report = gate.run(EXAMPLE, problems)
    assert report.result.code == "compile.pass", report.result.message
    assert [a.record.problem for a in report.artefacts] == problems
    for artefact in report.artefacts:
        record = artefact.record
        assert sha256_bytes(artefact.object.read_bytes()) == record.object_sha256
        assert sha256_bytes(artefact.cubin.read_bytes()) == record.cubin_sha256
        assert ".entry" in artefact.ptx.read_text()
        assert record.isolation == gate.builder.level.label
        assert from_json(BuildRecord, to_json(record)) == record


def test_a_record_says_what_is_launched_with_what(gate: CompileGate) -> None:
    record = built(gate)
    assert [(launch.grid, launch.block) for launch in record.launches] == [
        ((32, 1, 1), (128, 1, 1)),
        ((64, 1, 1), (128, 1, 1)),
    ]
    assert [[arg.tensor for arg in launch.args] for launch in record.launches] == [
        ["m", "w_gate_up", "workspace0"],
        ["workspace0", "w_down", "y"],
    ]
    assert record.workspaces == (("bf16", (2, 128)),)
    assert record.design == "warp-per-row"
    assert {k.name for k in record.kernels} == {launch.kernel for launch in record.launches}


def test_evidence_holds_the_facts_of_each_problem(gate: CompileGate) -> None:
    facts = gate.run(EXAMPLE, [NANO]).result.evidence["problems"][NANO.key]
    assert facts["ptx"]["global_stores"] > 0
    assert facts["seconds"] > 0
    assert {"grid", "registers", "stack_bytes", "smem"} <= set(facts["launches"][0])


def test_a_second_run_builds_nothing(gate: CompileGate, cache: Path) -> None:
    first = built(gate)
    with CompileGate(OP, cache) as other:
        report = other.run(EXAMPLE, [NANO])
        assert (other.built, other.cached, other.builder.starts) == (0, 1, 0)
        again = other.run(EXAMPLE, [NANO, OP.problem("nano", 4, "sm_90a")]).result
    assert report.result.evidence["cached"] == 1
    assert report.artefacts[0].record == first
    assert again.message == f"2 problems built and audited (1 of them earlier, by the same rules: {NANO.key})"


def test_paths_with_spaces_and_letters_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "my caché 'x'"
    odd.mkdir()
    for parent in (odd, *odd.parents):
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    with CompileGate(OP, odd / "cache") as other:
        report = other.run(EXAMPLE, [NANO])
    assert report.result.passed, report.result.message


def test_a_damaged_cache_is_built_again(gate: CompileGate) -> None:
    artefact = gate.run(EXAMPLE, [NANO]).artefacts[0]
    artefact.object.write_bytes(b"damaged")
    before = gate.built
    again = gate.run(EXAMPLE, [NANO]).artefacts[0]
    assert gate.built == before + 1
    assert sha256_bytes(again.object.read_bytes()) == artefact.record.object_sha256


def test_a_rebuild_gives_the_same_code(gate: CompileGate, cache: Path) -> None:
    first = built(gate)
    with CompileGate(OP, cache, gate.builder, fresh=True) as fresh:
        second = built(fresh)
        assert fresh.built == 1
    assert same_code(first, second) == ""
    assert first.object_sha256 == second.object_sha256


def test_other_code_is_told_apart(gate: CompileGate) -> None:
    a = built(gate)
    launch = replace(a.launches[0], grid=(1, 1, 1))
    assert "launch 0" in same_code(a, replace(a, launches=(launch, *a.launches[1:])))
    assert "workspaces" in same_code(a, replace(a, workspaces=()))
    kernel = replace(a.kernels[0], code_sha256="0" * 64)
    assert "machine code" in same_code(a, replace(a, kernels=(kernel, *a.kernels[1:])))
    assert "different kernels" in same_code(a, built(gate, OP.problem("nano", 1, "sm_90a")))


def test_tile_scale_adds_one_kernel_on_the_output(gate: CompileGate) -> None:
    plain, broken = built(gate), built(gate, defect="tile_scale")
    assert broken.defect == "tile_scale"
    assert len(broken.launches) == len(plain.launches) + 1
    last = broken.launches[-1]
    assert ([a.tensor for a in last.args], last.grid, last.block) == (["y"], (2, 1, 1), (128, 1, 1))
    assert [launch.grid for launch in broken.launches[:-1]] == [launch.grid for launch in plain.launches]


def test_drop_last_k_launches_the_same_but_computes_less(gate: CompileGate) -> None:
    problem = OP.problem("k3-tp8", 1, "sm_90a")
    plain, broken = built(gate, problem), built(gate, problem, "drop_last_k")
    assert [(x.grid, x.block) for x in broken.launches] == [(x.grid, x.block) for x in plain.launches]
    assert {k.code_sha256 for k in broken.kernels}.isdisjoint({k.code_sha256 for k in plain.kernels})


def test_a_defect_that_does_not_apply_is_said(gate: CompileGate) -> None:
    source = (ROOT / "tests" / "candidates" / "row_copy.py").read_text()
    report = gate.run(Candidate(OP.name, source, Origin("test")), [NANO], "drop_last_k")
    assert report.result.code == "compile.defect"


def test_an_unknown_defect_is_a_usage_error(gate: CompileGate) -> None:
    with pytest.raises(ValueError, match="tile_scale, drop_last_k"):
        gate.run(EXAMPLE, [NANO], "gremlin")


@pytest.mark.parametrize(("variant", "tensors"), [("delta", 7), ("prefix_only", 6)])
def test_axes_scalars_and_state_reach_the_candidate(cache: Path, gate: CompileGate, variant: str, tensors: int) -> None:
    op = REGISTRY.get("attn_res")
    source = (ROOT / "tests" / "candidates" / "attn_res_sample.py").read_text()
    candidate = Candidate(op.name, source, Origin("test"))
    problem = op.problem("nano", 1, "sm_90a", {"variant": variant})
    assert len(op.present(problem)) == tensors
    with CompileGate(op, cache, gate.builder) as other:
        for defect in ("", "tile_scale"):
            report = other.run(candidate, [problem], defect)
            assert report.result.passed, report.result.message
            record = report.artefacts[0].record
            assert record.design == variant
            assert len(record.launches) == (2 if defect else 1)
            if defect:
                assert record.launches[-1].args[0].tensor == "out"


def test_a_failing_problem_fails_the_gate_and_is_named(gate: CompileGate) -> None:
    source = EXAMPLE.source.replace('dims["width"], tokens)', 'dims["width"] if tokens < 4 else "x", tokens)')
    assert source != EXAMPLE.source
    problems = [OP.problem("nano", n, "sm_90a") for n in (1, 4)]
    report = gate.run(Candidate(OP.name, source, Origin("test")), problems)
    assert report.result.status is Status.FAIL
    assert problems[1].key in report.result.message
    assert report.artefacts == ()


@pytest.mark.parametrize(
    ("where", "error", "code"),
    [
        ("builder.build", BuilderError("the build server died"), "compile.builder"),
        ("_recorder.record", RecorderError("the sandbox failed"), "compile.recorder"),
    ],
)
def test_our_own_faults_are_errors_and_not_remembered(
    gate: CompileGate, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, code: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    candidate = Candidate(OP.name, EXAMPLE.source + f"\n# {code}\n", Origin("test"))
    owner, method = where.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(gate, owner), method, broken)
        report = gate.run(candidate, [NANO])
    assert (report.result.status, report.result.code) == (Status.ERROR, code)
    assert gate.run(candidate, [NANO]).result.passed


def test_a_gate_that_is_closed_meanwhile_passes_nothing(cache: Path, gate: CompileGate) -> None:
    with CompileGate(OP, cache, gate.builder, workers=1) as closing:
        started, go_on = threading.Event(), threading.Event()

        def wait(candidate: Candidate, problem: Problem, defect: str) -> Outcome:
            started.set()
            go_on.wait(30)
            return Outcome(Status.PASS, "compile.pass", "", 0.0)

        closing._one = wait  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as caller:
            report = caller.submit(closing.run, EXAMPLE, [OP.problem("nano", t, "sm_90a") for t in (1, 2, 4)])
            assert started.wait(30)
            closing._executor.shutdown(wait=False, cancel_futures=True)
            go_on.set()
            result = report.result(30).result
    assert (result.status, result.code) == (Status.ERROR, "compile.builder"), result.message


def test_a_gate_that_is_closed_before_it_begins_passes_nothing(cache: Path, gate: CompileGate) -> None:
    with CompileGate(OP, cache, gate.builder, workers=1) as closed:
        closed._executor.shutdown()
        result = closed.run(EXAMPLE, [OP.problem("nano", 1, "sm_90a")]).result
    assert (result.status, result.code) == (Status.ERROR, "compile.builder"), result.message


def test_no_problem_at_all_is_not_a_pass(gate: CompileGate) -> None:
    with pytest.raises(ValueError, match="no problem"):
        gate.run(EXAMPLE, [])
