"""docs/layers.md and docs/ranks.md say what their committed records say."""

import kernel_pages
from support import layers_measured, ranks_measured, staged
from support.checkout import ROOT
from support.committed import promoted, serving

from kgen.gates.ranks.job import OPS
from kgen.records import Candidate, Origin, Status

CANDIDATE = "tests/candidates/allreduce_one_shot.py"


def test_the_page_of_layers_is_made_from_its_record() -> None:
    assert kernel_pages.LAYERS.read_text(encoding="utf-8") == layers_measured.page()


def test_the_table_of_ranks_is_made_from_its_record() -> None:
    text = (ROOT / "docs" / "ranks.md").read_text(encoding="utf-8")
    assert text == kernel_pages.rewritten(text) and ranks_measured.region() in text


def test_the_record_of_ranks_is_of_the_committed_kernel_and_contract() -> None:
    found = ranks_measured.record()
    source = (ROOT / CANDIDATE).read_text(encoding="utf-8")
    op = next(op for op in OPS.values() if op.name == found.op)
    assert found.candidate == Candidate(found.op, source, Origin("file", {})).id
    assert found.op_contract == op.contract_sha256() and found.ranks == 2 == len(found.environment)


def test_the_record_of_ranks_passed_in_every_part_that_decides() -> None:
    found = ranks_measured.record()
    ended = {part.name: part.status for part in found.parts}
    assert found.verdict is Status.PASS and not [row for row in found.rows if row.complaint]
    assert all(ended[name] is Status.PASS for name in ("check", "time", "endure", "lose"))
    assert max(row.calls for row in found.rows if row.what == "first capture") >= 10_000


def test_the_record_of_another_architecture_has_every_source_that_serves_under_today_s_contract() -> None:
    rows = {row["candidate"]: row for row in staged.rows()}
    assert set(rows) == {p.candidate for op in promoted() for p in serving(op)}
    assert not [row["op"] for row in rows.values() if staged.stale(row)], "python benchmarks/staged.py"


def test_a_source_that_is_not_built_everywhere_or_not_right_is_not_staged() -> None:
    row = staged.rows()[0]
    assert staged.staged(row)
    dims = next(iter(row["dims"]))
    assert not staged.staged({**row, "dims": {**row["dims"], dims: {"asked": 11, "code": "compile.trace"}}})
    assert not staged.staged({**row, "interpreter": {"code": "numeric.ptx_unsupported"}})
    assert not staged.staged({name: value for name, value in row.items() if name != "interpreter"})
