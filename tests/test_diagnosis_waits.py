"""Blocks that wait for one another: seen in PTX of the real compiler, and told where the launch does not hold them."""

import json
import lzma
from pathlib import Path

import pytest
from runner_faults.kernels import SOURCES

from kgen.diagnosis.perf import findings
from kgen.diagnosis.shown import of_verdict
from kgen.gates.compile import CompileGate
from kgen.gates.spins import waiting, waiting_file
from kgen.ops import REGISTRY
from kgen.proposers.feedback import feedback
from kgen.records import Candidate, GateResult, Origin, Status, Verdict

BUILT = json.loads(lzma.decompress((Path(__file__).parent / "ptx_corpus" / "built.json.xz").read_bytes()))
SPIN = ("flag.", "grid_barrier.")  # the corpus's kernels with `while` round a load; `lock` spins on an atomic
OP = REGISTRY.get("mla_out_gate")
ONCE = "flag.plain_load"  # the compiler takes a plain load out of the loop


def test_of_all_kernels_of_the_corpus_those_that_wait_for_a_value_are_found() -> None:
    wanted = {name for name in BUILT if name.startswith(SPIN)} - {ONCE}
    assert {name for name in BUILT if waiting(BUILT[name]["ptx"])} == wanted and len(wanted) >= 18


LOOP = """.visible .entry k(
{
$L1:
\tld.acquire.gpu.global.b32 %r1, [%rd1];
\t{MORE}
\tsetp.ne.b32 %p1, %r1, 0;
\t@%p1 bra $L1;
\tret;
}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LOOP.replace("{MORE}", "mov.u32 %r9, 7;"), True),
        (LOOP.replace("{MORE}", "add.s64 %rd1, %rd1, 4;"), False),  # walks over an array
        (LOOP.replace("{MORE}", "").replace("%r1, 0", "%r2, 0"), False),  # counts turns
        (LOOP.replace("{MORE}", "").replace("ld.acquire.gpu", "ld"), False),  # read once, as far as PTX says
        (LOOP.replace("{MORE}", "").replace("global", "shared"), False),
        (LOOP.replace("{MORE}", "").replace("ld.acquire.gpu.global", "ld.volatile.global"), True),
        (LOOP.replace("{MORE}", "@%p1 bra $L9;").replace("ret;", "ret;\n$L9:"), True),
        (LOOP.replace("{MORE}", "nop;").replace("\t@%p1 bra $L1;\n", ""), False),
        ("", False),
        ("$L: bra $L;\n.entry k(\n@ bra ;", False),
    ],
)
def test_a_wait_is_a_loop_that_ends_by_what_it_reads_from_one_place(text: str, found: bool) -> None:
    assert waiting(text) == (("k",) if found else ())


def test_the_kernel_that_waits_is_named_and_a_file_that_is_gone_names_none(tmp_path: Path) -> None:
    path = tmp_path / "a.ptx"
    path.write_text(LOOP.replace("{MORE}", "").replace("%r1, 0", "%r2, 0") + LOOP.replace("entry k", "entry other"))
    assert waiting_file(path) == ("other",)
    assert waiting_file(tmp_path / "b.ptx") == ()


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
    with CompileGate(OP, tmp_path) as gate:
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
