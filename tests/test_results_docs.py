"""Figures in README.md and runs/README.md are those of the committed evidence, to the last digit shown."""

import json
import re
from pathlib import Path

import pytest

from kgen.proposers.families import FAMILIES, render
from kgen.records import Candidate, Evidence, Origin, PerfPoint, from_json

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "generated_kernels" / "moe_shared" / "e56cafe5a884.evidence.json"
DIMS = {"TP8": "k3-tp8", "TP16": "k3-tp16"}


def points() -> dict[tuple[str, int], PerfPoint]:
    evidence = from_json(Evidence, json.loads(EVIDENCE.read_text())["evidence"])
    return {(p.problem.split("/")[1], p.tokens): p for p in evidence.points if p.column == "graph"}


def rows(text: str) -> list[list[str]]:
    """Cells of table rows that start with a token count."""
    return [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| \d+ \|", line)
    ]


def test_the_readme_table_is_the_evidence() -> None:
    text, known = (ROOT / "README.md").read_text(), points()
    found = rows(text.split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0])
    assert [int(r[0]) for r in found] == [1, 2, 4, 8, 16, 32, 64]
    for tokens, *cells in found:
        for dims, (mine, stock, gain) in zip(DIMS.values(), (cells[:3], cells[3:]), strict=True):
            point = known[dims, int(tokens)]
            assert mine == f"{point.candidate_us:.2f}"
            assert stock == f"{point.baselines_us['stock']:.2f}"
            assert gain == f"{1 / point.ratio:.2f}×"


@pytest.mark.parametrize("title", list(DIMS))
def test_the_runs_tables_are_the_evidence(title: str) -> None:
    text, known = (ROOT / "runs" / "README.md").read_text(), points()
    found = rows(text.split(f"### {title} (")[1].split("###")[0])
    assert [int(r[0]) for r in found] == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64]
    for tokens, mine, stock, gain, interval, roofline in found:
        p = known[DIMS[title], int(tokens)]
        assert (mine, stock) == (f"{p.candidate_us:.2f}", f"{p.baselines_us['stock']:.2f}")
        assert gain == f"{1 / p.ratio:.2f}× ({p.best_baseline})"
        assert interval == f"{p.ratio_low:.3f}–{p.ratio_high:.3f}"
        assert roofline == f"{p.roofline * 100:.0f} %"


def test_every_point_beats_stock_with_an_interval_below_one() -> None:
    known = points()
    assert {(d, t) for d in DIMS.values() for t in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)} == set(known)
    assert max(p.ratio_high for p in known.values()) < 1.0


def test_the_command_in_the_runs_page_proposes_the_promoted_kernel() -> None:
    first = Candidate("moe_shared", render(FAMILIES["moe_shared"].known[0]), Origin("search"))
    assert "--proposer search --seed 0 --candidates 1" in (ROOT / "runs" / "README.md").read_text()
    assert EVIDENCE.name.startswith(first.id[:12])
    assert (EVIDENCE.parent / f"{first.id[:12]}.py").read_text() == first.source
