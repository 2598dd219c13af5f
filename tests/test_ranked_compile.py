"""Candidates of several ranks through the compile gate: real builds for two, four and eight ranks, cache, refusals."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builds import CANDIDATES, shared

from kgen.contract.ranks import AXIS, PAIR_SENTINEL
from kgen.gates.compile import CompileGate, CompileReport
from kgen.gates.runner.job import ptx_spec, spec
from kgen.ops import RANKED
from kgen.records import BuildRecord, Candidate, Origin, Problem, SymmetricBuffer, from_json, to_json

OP = RANKED["ranked_allreduce_residual"]
SOURCE = (CANDIDATES / "allreduce_one_shot.py").read_text()
EVIDENCE = Path(__file__).parents[1] / "generated_kernels"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileGate]:
    with CompileGate(OP, tmp_path_factory.mktemp("cache"), shared()) as made:
        yield made


def point(ranks: int, tokens: int = 1) -> Problem:
    return OP.problem("nano", tokens, "sm_90a", {AXIS: str(ranks)})


def compiled(gate: CompileGate, source: str, *ranks: int) -> CompileReport:
    return gate.run(Candidate(OP.name, source, Origin("file")), [point(n) for n in ranks])


def test_one_source_is_built_and_audited_for_two_four_and_eight_ranks_once(gate: CompileGate) -> None:
    report = compiled(gate, SOURCE, 2, 4, 8)
    assert report.result.passed, report.result.message
    for ranks, artefact in zip((2, 4, 8), report.artefacts, strict=True):
        box = SymmetricBuffer("box", "bf16", (ranks, 1, 256), 2, PAIR_SENTINEL)
        record = artefact.record
        assert record.symmetric == (box,) and f"ranks={ranks}" in record.problem.key
        assert from_json(BuildRecord, json.loads(json.dumps(to_json(record)))) == record
        assert report.result.evidence["problems"][record.problem.key]["symmetric"] == to_json((box,))
        assert spec(artefact).symmetric == ptx_spec(artefact).symmetric == (box,)
        (launch,) = record.launches
        assert {"part", "prefix", "o", "box_peers", "workspace0"} <= {a.tensor for a in launch.args}
    again = compiled(gate, SOURCE, 2, 4, 8)
    assert again.result.evidence["cached"] == 3
    assert [a.record for a in again.artefacts] == [a.record for a in report.artefacts]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("PARITIES = 2", "PARITIES = 1", "1 parities are too few"),
        ('("box", "bf16"', '("prefix", "bf16"', "'prefix' is another argument's"),
        ('("box", "bf16"', '("rank", "bf16"', "'rank' is another argument's"),
        ("PARITIES, 0x8000_0000", "PARITIES, 1 << 32", "one 32-bit word"),
        ('dims["hidden"]), PARITIES', 'dims["hidden"] * 65536), PARITIES', "symmetric buffers exceed"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_in_one_line(gate: CompileGate, old: str, new: str, says: str) -> None:
    assert SOURCE.count(old) == 1
    result = compiled(gate, SOURCE.replace(old, new), 8).result
    assert (result.status, result.code) == ("fail", "audit.symmetric") and says in result.message, result.message


def test_records_of_one_rank_are_written_without_a_word_of_it() -> None:
    """So what was promoted before keeps its bytes, and with them its hashes."""
    path = min(EVIDENCE.glob("moe_shared/*.builds.json"))
    builds = json.loads(path.read_text())
    assert builds and all("symmetric" not in build for build in builds)
    assert [to_json(from_json(BuildRecord, build)) for build in builds] == builds
