"""unit-numeric without a GPU: real kernels, compiled here, in the PTX interpreter in the gate's own process.

The worked example of the documents passes; each planted fault is refused under its code. Findings themselves are
tested in test_ptx_*.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.builds import shared
from support.inside import in_this_process
from support.loops import kgen

from kgen.contract import Op
from kgen.gates import numeric
from kgen.gates.artefacts import Artefact
from kgen.gates.compile import CompileGate
from kgen.gates.ptx import Kind
from kgen.gates.runner.interpreted import CODES
from kgen.gates.runner.job import PTX, ptx_spec
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, render
from kgen.records import Candidate, GateResult, Origin, Status, Verdict

OP = REGISTRY.get("moe_shared")
EXAMPLE = Path(__file__).parents[1] / "docs/examples/moe_shared.py"
GOOD = EXAMPLE.read_text()
TOKENS = 2  # the least of which one can be left out
FAULTS = {  # what is changed, into what -> code
    "reads past the last row": ("if i < vectors:", "if i < vectors + 32:", "numeric.memory"),
    "forgets a factor": ("(LAMBDA * cute.math.tanh(u / LAMBDA))", "cute.math.tanh(u / LAMBDA)", "numeric.error"),
    "leaves a token out": ("cutlass.range(self.tokens)", "cutlass.range(self.tokens - 1)", "numeric.unwritten"),
}
Made = Callable[[Op, str, int], Artefact]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    cache = tmp_path_factory.mktemp("cache")

    def build(op: Op, source: str, tokens: int) -> Artefact:
        with CompileGate(op, cache, shared()) as gate:
            problem = op.problem(op.pack.small, tokens, "sm_90a")
            report = gate.run(Candidate(op.name, source, Origin("test")), [problem])
            assert report.result.passed, report.result.message
            return report.artefacts[0]

    return build


def judged(op: Op, artefact: Artefact, tmp_path: Path) -> GateResult:
    return numeric.interpret(op, [artefact], cache=tmp_path / "linked")


def test_a_right_kernel_passes_and_the_result_says_where(made: Made, tmp_path: Path) -> None:
    result = judged(OP, made(OP, GOOD, TOKENS), tmp_path)
    assert (result.status, result.code) == (Status.PASS, "numeric.ptx_pass"), result.message
    assert result.evidence["device"] == "ptx" and result.interpreted
    assert {row["what"] for row in result.evidence["table"]} >= {f.name for f in OP.families}


# a token left out is refused in an interpreter on a node, too: test_pool_dispatch.py
@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=[pytest.mark.deep] * (f == "leaves a token out")) for f in FAULTS]
)
def test_a_planted_fault_is_refused_under_its_code(
    fault: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numeric, "running", in_this_process)
    before, after, code = FAULTS[fault]
    assert before in GOOD
    result = judged(OP, made(OP, GOOD.replace(before, after), TOKENS), tmp_path)
    assert (result.status, result.code) == (Status.FAIL, code), result.message


def test_scalars_and_states_reach_the_kernel_as_each_call_has_them(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numeric, "running", in_this_process)
    op = REGISTRY.get("attn_res")
    result = judged(op, made(op, render(FAMILIES[op.name].known[0]), 4), tmp_path)
    assert (result.status, result.code) == (Status.PASS, "numeric.ptx_pass"), result.message


def test_an_unknown_instruction_is_a_skip_that_names_it(made: Made, tmp_path: Path) -> None:
    artefact = made(OP, GOOD, TOKENS)
    text = artefact.ptx.read_text()
    edited = tmp_path / "kernel.ptx"
    assert "fma.rn.f32" in text
    edited.write_text(text.replace("fma.rn.f32", "fma.exactly.f32"))
    spec = replace(ptx_spec(artefact), ptx=str(edited))
    result = numeric.run_specs(OP, [spec], cache=tmp_path, device=PTX)
    assert (result.status, result.code) == (Status.SKIP, "numeric.unsupported"), result.message
    assert "fma.exactly.f32" in result.message


def test_text_that_is_no_ptx_is_the_candidates_fault_in_one_line(made: Made, tmp_path: Path) -> None:
    edited = tmp_path / "kernel.ptx"
    edited.write_text(".version 8.8\n.target sm_90a\n.visible .entry (")
    spec = replace(ptx_spec(made(OP, GOOD, TOKENS)), ptx=str(edited))
    result = numeric.run_specs(OP, [spec], cache=tmp_path, device=PTX)
    assert result.status in (Status.FAIL, Status.ERROR) and "\n" not in result.message and "line" in result.message


def test_every_kind_of_finding_has_a_code_that_fails() -> None:
    assert set(CODES) == set(Kind)
    assert set(CODES.values()) <= set(numeric.ORDER)


def test_an_interpreted_pass_promotes_nothing() -> None:
    passes = [GateResult(g, Status.PASS, f"{g}.pass", "") for g in ("compile", "full-model-eval", "perf-sweep")]
    real = GateResult("unit-numeric", Status.PASS, "numeric.pass", "", {"device": "cuda"})
    assert Verdict("c", (*passes, real)).promotable
    interpreted = Verdict("c", (*passes, replace(real, evidence={"device": "ptx"})))
    assert interpreted.staged and not interpreted.promotable


def test_the_command_judges_a_file_without_a_gpu(tmp_path: Path) -> None:
    done = kgen(tmp_path, "gate", "unit-numeric", str(EXAMPLE), "--op", OP.name, "--device", "ptx", "--tokens", "1")
    assert done.returncode == 0, done.stderr
    assert "numeric.ptx_pass" in done.stdout


def test_other_gates_have_no_interpreter(tmp_path: Path) -> None:
    done = kgen(tmp_path, "gate", "perf-sweep", str(EXAMPLE), "--op", OP.name, "--device", "ptx")
    assert done.returncode == 2 and "unit-numeric" in done.stderr
