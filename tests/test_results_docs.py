"""Pages on promoted kernels say what the committed evidence says, to the last digit shown.

Two routes: every generated region is what kernel_pages makes now; and the figures are compared with the evidence, read
as plain JSON, and with a set of a few made-up points whose tables are worked out by hand.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_pages
import pytest
from support.checkout import ROOT
from support.committed import SET, evidence, headline, manifest_of, promoted, serving
from support.kernel_tables import bins_table, plain_table, ranked_table, summary_table
from support.sets import CONTRACT, KEY, LEFT, TIE, WIN, fill, make_case

from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.proposers.families import FAMILIES, render
from kgen.records import Candidate, Origin
from kgen.store.signing import sign

DIMS = {"TP8": "k3-tp8", "TP16": "k3-tp16"}
RESULTS = (ROOT / "README.md").read_text().split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0]
RUNS = (ROOT / "runs" / "README.md").read_text()
KERNEL_PAGES = sorted((ROOT / "docs" / "kernels").glob("*.md"))
OPS = sorted(REGISTRY.ops)
AGAIN = "run PYTHONPATH=tests python -m kernel_pages"


def rows(text: str) -> list[list[str]]:
    """Cells of table rows that start with a token count."""
    return [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| \d+ \|", line)
    ]


def section(op: str, candidate: str, arch: str) -> str:
    """What runs/README.md says of a kernel, all of its promotions together."""
    parts = RUNS.split(f"## {op}, {arch}: `{candidate[:12]}`\n")[1:]
    assert parts, AGAIN
    return "".join(part.split("\n## ")[0] for part in parts)


@pytest.mark.parametrize("path", kernel_pages.documents(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_page_is_what_the_committed_evidence_makes_of_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert kernel_pages.REGION.search(text) and kernel_pages.rewritten(text) == text, AGAIN


def test_every_op_has_a_page_with_all_of_its_parts() -> None:
    assert [p.stem for p in KERNEL_PAGES if p.stem != "README"] == OPS
    for op in OPS:
        text = (ROOT / "docs" / "kernels" / f"{op}.md").read_text(encoding="utf-8")
        assert [found[2] for found in kernel_pages.REGION.finditer(text)] == [
            f"{n} {op}" for n in ("status", "bounds", "ranked", "points")
        ]
        assert f"# {op}\n" in text and ("**Not promoted.**" in text) == (op not in promoted())


@pytest.mark.parametrize("path", KERNEL_PAGES, ids=lambda p: p.name)
def test_what_is_written_by_hand_has_no_measured_figure_and_no_broken_link(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"\d µs|\d×|\d us\b", kernel_pages.REGION.sub("", text))
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert targets and not [t for t in targets if not (path.parent / t).exists()]


@pytest.mark.parametrize("op", promoted())
def test_each_point_of_a_promoted_kernel_is_in_its_page_and_among_the_commands(op: str) -> None:
    page, champions = (ROOT / "docs" / "kernels" / f"{op}.md").read_text(encoding="utf-8"), manifest_of(SET).champions
    for promotion in serving(op):
        plain = json.loads((SET / promotion.evidence).read_text(encoding="utf-8"))["evidence"]
        text = section(op, promotion.candidate, promotion.arch)
        points = [p for p in plain["points"] if p["column"] == "graph" and champions.get(p["problem"]) == promotion.seq]
        assert points
        for p in points:
            figures = _figures(p)
            assert any(all(f in line for f in figures) for line in page.splitlines()), figures
            assert any(all(f in line for f in figures[:5]) for line in text.splitlines()), figures


def _figures(p: dict[str, Any]) -> list[str]:
    """What a row of a point must hold, from plain JSON."""
    return [
        f"| {p['tokens']} | ",
        f" {p['candidate_us']:.2f} | ",
        f" {p['baselines_us']['stock']:.2f} | ",
        f" {1 / p['ratio']:.2f}× ({p['best_baseline']}) | ",
        f" {p['ratio_low']:.3f}–{p['ratio_high']:.3f} | ",
        f" {p['floor_us']:.2f} | {p['roofline'] * 100:.0f} % | {p['label']} |",
    ]


@pytest.mark.parametrize("op", promoted())
def test_the_commands_propose_the_promoted_kernel(op: str) -> None:
    for promotion in serving(op):
        text = section(op, promotion.candidate, promotion.arch)
        found = re.search(
            rf"^kgen propose --op {op} --proposer search --seed 0 --candidates (\d+)\b", text, re.MULTILINE
        )
        if found is None:
            assert "--proposer mailbox" in text
            continue
        made = Candidate(op, render(FAMILIES[op].known[int(found[1]) - 1]), Origin("search"))
        assert made.id == promotion.candidate
        assert (SET / promotion.source).read_text() == made.source


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


def test_all_points_of_an_op_are_asked_for_by_naming_none() -> None:
    (promotion,) = serving("moe_shared")
    command = kernel_pages.propose_command(promotion, evidence(promotion))
    assert command == "kgen propose --op moe_shared --proposer search --seed 0 --candidates 1"


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two ops: points that win, tie and left; and one that left in a scenario alone, not by itself."""
    root = tmp_path_factory.mktemp("sets") / "set"
    plain = make_case("a", {1: WIN, 8: TIE, 64: LEFT}, op="dense_mlp", dims="k3-tp8")
    deep = make_case("b", {1: WIN, 64: WIN}, op="attn_res", dims="k3-tp8", run="20260101T000000Z-attn_res-abc123")
    made = deep.evidence.evidence
    slow = replace(made.points[1], scenario="nb8", ratio_high=LEFT, label="left", candidate_us=77.0)
    facts = {"kit": "k", "together": {"dense_mlp": "c"}}
    signed = sign(replace(made, points=(*made.points, slow), facts=facts), KEY)
    current = Current({"dense_mlp": CONTRACT, "attn_res": CONTRACT}, 1)
    fill(root, plain, replace(deep, evidence=signed), current=current)
    return root


def test_a_summary_shows_what_serves_and_counts_the_rest(more: Path) -> None:
    assert promoted(more) == ["attn_res", "dense_mlp"]
    found = [
        [c.strip() for c in line.split("|")[1:-1]] for line in summary_table(promoted(more), more).splitlines()[2:]
    ]
    # 64 tokens of attn_res win with typical inputs and left in a scenario; of dense_mlp they left
    assert found == [
        ["[attn_res](docs/kernels/attn_res.md)", "1 / 0 / 1", "9.00", "1.12×", *["–"] * 4, "70 % / – / –"],
        ["[dense_mlp](docs/kernels/dense_mlp.md)", "1 / 1 / 1", "9.00", "1.12×", "10.20", "0.99×", "–", "–",
         "70 % / 70 % / –"],
    ]  # fmt: skip


def test_a_page_says_which_points_left_and_why_a_bin_did(more: Path) -> None:
    status, points = kernel_pages.status_region(more, "attn_res"), kernel_pages.points_region(more, "attn_res")
    assert "1 point wins, 0 tie, 1 left the envelope and stays with the stock op: 64 tokens at k3-tp8." in " ".join(
        status.split()
    )
    assert rows(points) == [
        ["1", "typical", "9.00", "10.00", "1.12× (stock)", "0.880–0.900", "7.00", "70 %", "win"],
        ["64", "typical", "9.00", "10.00", "1.12× (stock)", "0.880–0.900", "7.00", "70 %", "win"],
        ["64", "nb8", "77.00", "10.00", "1.12× (stock)", "0.880–1.200", "7.00", "70 %", "left"],
    ]
    assert rows(plain_table("dense_mlp", "k3-tp8", more)) == [
        ["1", "9.00", "10.00", "1.12× (stock)", "0.880–0.900", "70 %"],
        ["8", "10.20", "10.00", "0.99× (stock)", "1.000–1.020", "70 %"],
    ]


def test_the_runs_page_has_a_section_for_each_kernel_with_the_points_it_was_made_for(more: Path) -> None:
    text = kernel_pages.sections_region(more)
    assert re.findall(r"^## (.*?)(?:, sm_90a: `\w{12}`)?$", text, re.MULTILINE) == [
        "One kit for several kernels", "attn_res", "dense_mlp"
    ]  # fmt: skip
    assert "all of them in place: attn_res." in " ".join(text.split())
    assert "--op dense_mlp --proposer mailbox --mailbox DIR --dims k3-tp8 --tokens 1 --tokens 8 --tokens 64\n" in text
    assert "Run `20260101T000000Z-attn_res-abc123`" in " ".join(text.split())


def test_an_op_that_is_promoted_nowhere_says_so(more: Path) -> None:
    assert "**Not promoted.**" in kernel_pages.status_region(more, "moe_shared")
    assert "Nothing was measured" in kernel_pages.points_region(more, "moe_shared")
    assert "| [moe_shared](moe_shared.md) | not promoted |" in kernel_pages.index_region(more)
    assert "| [dense_mlp](dense_mlp.md) | 1 / 1 / 1 |" in kernel_pages.index_region(more)


def test_only_what_lies_between_the_marks_is_rewritten(more: Path) -> None:
    page = "a\n<!-- generated: plain dense_mlp k3-tp8 -->\nold\n<!-- end -->\nb <!-- end -->\n"
    made = kernel_pages.rewritten(page, more)
    assert made.startswith("a\n<!-- generated: plain dense_mlp k3-tp8 -->\n\n| tokens") and "old" not in made
    assert made.endswith("| 70 % |\n\n<!-- end -->\nb <!-- end -->\n") and kernel_pages.rewritten(made, more) == made
    with pytest.raises(ValueError, match="no region 'tables'; there are bins, "):
        kernel_pages.rewritten("<!-- generated: tables x -->\n<!-- end -->", more)


def test_several_dims_stand_side_by_side(more: Path) -> None:
    assert rows(bins_table("dense_mlp", {"A": "k3-tp8", "B": "k3-tp8"}, (8,), more)) == [
        ["8", *["10.20", "10.00", "0.99×"] * 2]
    ]


def test_a_ranking_shows_times_and_what_tells_its_points_apart() -> None:
    rows_ = [
        {"point": f"attn_res/nano/t{n}/sm_90a", "candidate": c, "status": "ok", "us": t, "stock_us": 30.0 + n}
        for n, c, t in ((1, "a" * 12, 2.0), (8, "a" * 12, 3.0), (1, "b" * 12, 2.5))
    ]
    lost = {"point": "attn_res/nano/t8/sm_90a", "candidate": "b" * 12, "status": "lost", "message": "no progress"}
    values = {"a" * 12: {"ctas": 64, "pdl": True}, "b" * 12: {"ctas": 32, "pdl": True}}
    candidates = {name: {"template": "attn_res.py.tmpl", "values": each} for name, each in values.items()}
    assert ranked_table({"candidates": candidates, "rows": [*rows_, lost]}).splitlines()[2:] == [
        f"| `{'a' * 12}` | attn_res, ctas 64 | 2.00 | 3.00 |",
        f"| `{'b' * 12}` | attn_res, ctas 32 | 2.50 | lost |",
        "| stock, not compiled |  | 31.00 | 38.00 |",
        "",
        "lost: no progress.",
    ]
