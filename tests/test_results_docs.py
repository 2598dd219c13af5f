"""Figures in README.md and runs/README.md are those of the committed evidence, to the last digit shown."""

import re

import pytest
from support.checkout import ROOT
from support.committed import SET, headline, serving

from kgen.proposers.families import FAMILIES, render
from kgen.records import Candidate, Origin

DIMS = {"TP8": "k3-tp8", "TP16": "k3-tp16"}
RESULTS = (ROOT / "README.md").read_text().split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0]
RUNS = (ROOT / "runs" / "README.md").read_text()


def rows(text: str) -> list[list[str]]:
    """Cells of table rows that start with a token count."""
    return [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| \d+ \|", line)
    ]


def test_the_readme_table_is_the_evidence() -> None:
    known, found = headline("moe_shared"), rows(RESULTS)
    assert [int(r[0]) for r in found] == [1, 2, 4, 8, 16, 32, 64]
    for tokens, *cells in found:
        for dims, (mine, stock, gain) in zip(DIMS.values(), (cells[:3], cells[3:]), strict=True):
            point = known[dims, int(tokens)]
            assert mine == f"{point.candidate_us:.2f}"
            assert stock == f"{point.baselines_us['stock']:.2f}"
            assert gain == f"{1 / point.ratio:.2f}×"


def test_the_readme_says_what_serves_and_links_its_page() -> None:
    words = " ".join(RESULTS.split())
    promotions, known = serving("moe_shared"), headline("moe_shared")
    (arch,) = {p.arch for p in promotions}
    served = {p.problem for p in known.values()}
    assert f"`moe_shared` is promoted for `{arch}` (H200), {len(served)} points" in words
    assert all(f"docs/reports/moe_shared-{p.candidate[:12]}.md" in words for p in promotions)
    first, last = (known["k3-tp8", tokens] for tokens in (1, 64))
    shares = f"({first.roofline * 100:.0f} % of it is reached at 1 token, {last.roofline * 100:.0f} % at 64)"
    assert f"The floor at TP8 is {first.floor_us:.1f} µs {shares}" in words


@pytest.mark.parametrize("title", list(DIMS))
def test_the_runs_tables_are_the_evidence(title: str) -> None:
    known = headline("moe_shared")
    found = rows(RUNS.split(f"### {title} (")[1].split("###")[0])
    assert [int(r[0]) for r in found] == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64]
    for tokens, mine, stock, gain, interval, roofline in found:
        p = known[DIMS[title], int(tokens)]
        assert (mine, stock) == (f"{p.candidate_us:.2f}", f"{p.baselines_us['stock']:.2f}")
        assert gain == f"{1 / p.ratio:.2f}× ({p.best_baseline})"
        assert interval == f"{p.ratio_low:.3f}–{p.ratio_high:.3f}"
        assert roofline == f"{p.roofline * 100:.0f} %"


def test_every_point_beats_stock_with_an_interval_below_one() -> None:
    known = headline("moe_shared")
    assert {(d, t) for d in DIMS.values() for t in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)} == set(known)
    assert max(p.ratio_high for p in known.values()) < 1.0


def test_the_command_in_the_runs_page_proposes_the_promoted_kernel() -> None:
    first = Candidate("moe_shared", render(FAMILIES["moe_shared"].known[0]), Origin("search"))
    assert "--proposer search --seed 0 --candidates 1" in RUNS
    for promotion in serving("moe_shared"):
        assert promotion.candidate == first.id and f"{promotion.arch}: `{first.id[:12]}`" in RUNS
        assert (SET / promotion.source).read_text() == first.source
