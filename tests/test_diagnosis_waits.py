"""Blocks that wait for one another: refused or told where the launch does not hold them."""

import json
import math
import re
from pathlib import Path

from runner_faults.kernels import SOURCES
from support.builds import shared

from kgen.diagnosis.perf import findings
from kgen.diagnosis.shown import of_verdict
from kgen.gates.compile import CompileGate
from kgen.gates.occupancy import sure
from kgen.ops import REGISTRY
from kgen.proposers.feedback import feedback
from kgen.records import Candidate, GateResult, Origin, Status, Verdict

OP = REGISTRY.get("mla_out_gate")
ROOT = Path(__file__).parents[1]
WAITS = re.compile(r"while [^\n]*:\n[^\n]*cute\.arch\.load\(")  # as those that wait are written here


def evidence(blocks: int, dims: str = "d", **attributes: int) -> dict[str, object]:
    launch = {"kernel": "k", "grid": [blocks, 1, 1], "block": [1024, 1, 1], "registers": 32, "smem": 0}
    return {f"op/{dims}/t8/sm_90a": {"launches": [{**launch, "attributes": attributes}], "waits": ["k"], "ptx": {}}}


def waits(problems: dict[str, object]) -> list[str]:
    return [f.line for f in findings(problems, []) if f.code == "wait"]


def test_a_wait_without_a_cooperative_launch_is_told_with_what_fits() -> None:
    # 1024 threads of 32 registers: two blocks an SM, 264 on 132 SMs
    (said,) = waits(evidence(264))
    assert (
        "264 blocks, 264 are sure to run at once on 132 SMs, if nothing else runs there" in said
        and "cooperative=True" in said
    )
    (said,) = waits(evidence(265))
    assert "265 blocks, no more than 264 are sure to run at once on 132 SMs: it may never end" in said
    assert waits(evidence(264, cooperative=1)) == [] and waits(evidence(1)) == []
    quiet = evidence(264)
    quiet["op/d/t8/sm_90a"]["waits"] = []  # type: ignore[index]
    assert waits(quiet) == []


def test_blocks_of_one_cluster_are_no_news_and_clusters_fill_a_gpu_worse() -> None:
    clustered = evidence(16)
    clustered["op/d/t8/sm_90a"]["launches"][0]["cluster"] = [4, 4, 1]  # type: ignore[index]
    assert waits(clustered) == []
    clustered["op/d/t8/sm_90a"]["launches"][0]["grid"] = [64, 1, 1]  # type: ignore[index]
    (said,) = waits(clustered)
    assert "64 blocks, 144 are sure to run at once" in said  # 264 places, 8 x 15 of them left over: 9 clusters


def test_a_barrier_over_more_blocks_than_fit_is_refused_by_the_compile_gate_whatever_was_built_before(
    tmp_path: Path,
) -> None:
    candidate, problem = Candidate(OP.name, SOURCES["grid_deadlock"], Origin("t")), OP.problem("nano", 2, "sm_90a")
    with CompileGate(OP, tmp_path, shared()) as gate:
        built = gate.one(candidate, problem)
        report = gate.run(candidate, [problem])
        assert (built.code, gate.built, gate.cached) == ("compile.pass", 1, 1)
    result = report.result
    assert (result.status, result.code, report.artefacts) == (Status.FAIL, "audit.wait", ())
    assert result.message.startswith(f"{problem.key}: kernel ") and "\n" not in result.message
    assert built.artefact is not None and built.artefact.record.launches[0].grid[2] == 4096
    (found,) = of_verdict(Verdict(candidate.id, (result,))).findings
    assert found.code == "wait" and "cooperative=True" in found.line


def test_a_kernel_is_told_once_where_it_has_most_blocks() -> None:
    many = evidence(300, "e")
    many["op/e/t8/sm_90a"]["launches"][0]["kernel"] = "k_of_e"  # type: ignore[index]
    many["op/e/t8/sm_90a"]["waits"] = ["k_of_e"]  # type: ignore[index]
    (said,) = waits({**evidence(8), **many, **evidence(9, "f")})
    assert "op/e/t8/sm_90a" in said and "300 blocks" in said


def test_a_candidate_that_another_gate_refuses_is_told_of_its_wait_after_what_was_seen() -> None:
    compiled = GateResult("compile", Status.PASS, "compile.pass", "", {"problems": evidence(264)})
    hung = GateResult("unit-numeric", Status.FAIL, "numeric.timeout", "no end in 20 s")
    lines = [f.code for f in of_verdict(Verdict("c", (compiled, hung))).findings]
    assert "wait" in lines and "numeric.timeout" in lines
    assert of_verdict(Verdict("c", (compiled,))).findings == ()
    refused = GateResult("compile", Status.FAIL, "audit.spill", "m", {"problems": evidence(264)})
    assert [f.code for f in of_verdict(Verdict("c", (refused,))).findings] == ["spill"]
    page = feedback(((Candidate("op", "x = 1\n", Origin("t")), Verdict("c", (compiled, hung))),)).values["failed"]
    assert "[wait] op/d/t8/sm_90a" in page["message"]


def test_what_the_repository_has_of_kernels_that_wait_passes_the_rule() -> None:
    kernels = [p for p in ROOT.glob("docs/examples/**/kernel.py") if WAITS.search(p.read_text(encoding="utf-8"))]
    fitting = 0
    for path in kernels:
        result = json.loads((path.parent / "compile.json").read_text(encoding="utf-8"))
        for key, facts in result["evidence"]["problems"].items():
            for launch in facts["launches"]:
                sizes = math.prod(launch["block"]), launch["registers"], launch["smem"], math.prod(launch["cluster"])
                fits = math.prod(launch["grid"]) <= sure(key.split("/")[-1], *sizes, 0)
                fitting += fits and "cooperative" not in launch["attributes"]
                assert fits or launch["attributes"]["cooperative"], path
    assert fitting, "one of an agent's waits without a cooperative launch, and fits"
    written = [*ROOT.glob("pipeline/proposers/families/*.tmpl"), *ROOT.glob("generated_kernels/*/*.py")]
    waiting = [text for path in written if WAITS.search(text := path.read_text(encoding="utf-8"))]
    assert len(waiting) >= 2 and all("cooperative=True" in text for text in waiting)
