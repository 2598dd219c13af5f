"""The page of a run and the pages of a set, as text: what stands where, that all is escaped, that nothing is loaded."""

import hashlib
import math
import re
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.loops import OP, recording, source
from support.proven import DIMS, proven
from support.sets import CONTRACT, KEY, LEFT, TIE, WIN, fill, make_case, point, problem

from kgen.gates.ingest import Ingested
from kgen.loop.intake import judge, take_in
from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.promotion.rollback import rollback
from kgen.records import Candidate, GateResult, Origin, Problem, Status
from kgen.report import Document, as_json, heat, plots, read, sources
from kgen.report.catalogue import serving, site
from kgen.report.junit import junit
from kgen.report.page import Before, of_run
from kgen.report.rendering import render
from kgen.store import IntegrityError, KernelSet, Runs
from kgen.store.kernelset import MANIFEST, manifest_bytes

VOID = {"meta", "br", "input", "hr", "img", "link"}
CURRENT = Current({"dense_mlp": CONTRACT}, 1)


class Outline(HTMLParser):
    """Ids, links, text by element, and whether every element is closed by its own end tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def sound(text: str) -> Outline:
    """The outline of a page that is well formed and loads nothing."""
    page = Outline(text)
    assert not page.wrong and not page.open
    assert len(set(page.ids)) == len(page.ids)
    assert not [link for link in page.links if link.startswith("#") and link[1:] not in page.ids]
    loads = [
        (t, n, v) for t, n, v in page.attributes if n in ("src", "srcset", "action", "style") or n.startswith("on")
    ]
    assert not loads and "@import" not in text and "url(" not in text
    assert not re.findall(r"https?://", text)
    return page


@pytest.fixture(scope="module")
def promotable(tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder = tmp_path_factory.mktemp("proven")
    made = proven(folder / "runs", folder / "cache")
    with made.run.lock():
        take_in(made.run, Ingested(made.case.evidence, made.case.raw, "own-key"))
    return read(made.run, OP)


def section(text: str, name: str) -> str:
    return Outline(text.split(f'<section id="{name}"')[1].split("</section>")[0]).text


def test_a_page_has_every_part_in_the_order_that_a_reviewer_reads(promotable: Document) -> None:
    text = of_run(promotable)
    page = sound(text)
    assert re.findall(r'<section id="([\w-]+)"', text) == [
        *("gates", "numbers", "model", "speed", "built", "source", "difference", "candidates", "lineage"),
        *("environment", "provenance", "reproduce"),
    ]
    assert [link for link in page.links if link != "#main"] == [
        f"#{name}" for name in re.findall(r'<section id="([\w-]+)"', text)
    ]
    assert "moe_shared: PROMOTABLE: candidate" in page.text
    assert "2 points win, 1 tie" in page.text and f"kgen promote {promotable.run.id}" in page.text


def test_the_tables_of_the_page_say_what_the_evidence_says(promotable: Document) -> None:
    text = of_run(promotable)
    assert "compile pass compile.pass built 2.0 unit-numeric pass" in section(text, "gates")
    assert "2.02e-03 1.10e-03 1.20e-03 4.00e-03 1.30e-03 1.40e-03 4.00e-03 93 %" in section(text, "numbers")
    assert "1.010 [0.980, 1.040]" in section(text, "model") and "tile_scale (slice-tp8): refused." in section(
        text, "model"
    )
    speed = section(text, "speed")
    assert "16 1.190 1.180–1.200 12.00 µs · 70 % · left" in speed  # tokens, ratio, interval, time, share, label
    assert "NVIDIA H200" in section(text, "environment")
    assert f"kgen kit {promotable.run.id} -o kit.pyz" in section(text, "reproduce")


def test_a_page_may_run_its_own_script_and_style_and_no_other(promotable: Document) -> None:
    text = of_run(promotable)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy.replace("&#39;", "'").replace("&#43;", "+")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


ATTACK = "</td></code></pre><script>alert(1)</script><img src=x onerror=alert(2)>\" ' & {{ 7 * 7 }} \u202e\x07"


def test_text_of_candidates_and_compilers_stays_data(tmp_path: Path) -> None:
    made = proven(tmp_path / "runs", tmp_path / "cache")
    with made.run.lock():
        folder = made.run.add(Candidate(OP.name, f"# {ATTACK}\n", Origin("openai", {"model": ATTACK, "kind": ATTACK})))
        folder.write_result(GateResult("compile", Status.FAIL, ATTACK, ATTACK))
        judge(folder)
    document = read(made.run, OP)
    (bad,) = [e for e in document.entries if e.candidate.source.startswith("# <")]
    text = of_run(replace(document, subject=bad), Before(ATTACK, ATTACK, ATTACK))
    page = sound(text)
    assert text.count("<script") == 1 and "<img" not in text and "49" not in section(text, "source")
    assert "alert(1)" in page.text and "\u202e" not in text and "⟨U+202E⟩" in page.text and "\x07" not in text


def test_a_page_of_an_empty_and_of_an_unfinished_run(tmp_path: Path) -> None:
    empty = read(Runs(tmp_path / "a").find(recording(tmp_path / "a", []).name), OP)
    assert "nothing was proposed" in sound(of_run(empty)).text
    begun = read(Runs(tmp_path / "b").find(recording(tmp_path / "b", [source("a")]).name), OP)
    page = sound(of_run(begun))
    assert "UNFINISHED" in page.text and "#source" in page.links and "#speed" not in page.links


def test_the_previous_champion_stands_on_the_left_and_only_changes_are_marked() -> None:
    old = "".join(f"line_{n} = {n}\n" for n in range(20))
    new = (
        old.replace("line_10 = 10\n", "line_10 = 11\n")
        .replace("line_15 = 15\n", "")
        .replace("line_19", "x = 1\nline_19")
    )
    rows = sources.difference(old, new)
    assert [(r.kind, r.old, r.new) for r in rows if r.kind not in ("same", "gap")] == [
        ("changed", 11, 11),
        ("removed", 16, 0),
        ("added", 0, 19),
    ]
    assert [r.old for r in rows][:4] == [0, 8, 9, 10] and [r.kind for r in rows].count("gap") == 1  # three before it
    assert sources.counted(rows) == (2, 2)
    assert sources.difference(old, old) == ()


def test_a_lone_carriage_return_hides_no_code_in_a_comment() -> None:
    made = sources.lines("x = 1  # one\ry = 2\r\nz = 3\n")
    assert len(made) == 3 and [re.sub("<[^>]*>", "", line) for line in made] == ["x = 1  # one", "y = 2", "z = 3"]
    assert [(r.kind, r.new) for r in sources.difference("x\n", "x\ry\n")] == [("same", 1), ("added", 2)]


def test_highlighting_keeps_every_line_and_its_text() -> None:
    text = 'def f():\n    """a\n\n    <b>\n    """\n\n    return "é" \\\n        + 1\n\n\n'
    made = sources.lines(text)
    plain = [Outline(str(line)).words for line in made]
    assert ["".join(words) for words in plain] == text.removesuffix("\n").split("\n")
    assert '<span class="k">def</span>' in made[0] and all(
        str(m).count("<span") == str(m).count("</span") for m in made
    )


def test_a_source_that_is_no_python_is_shown() -> None:
    assert "".join(Outline(str(sources.lines("def (((\n")[0])).words) == "def ((("


def test_the_heat_map_puts_dims_side_by_side_and_shades_by_the_upper_bound() -> None:
    points = [
        *(
            point(problem(t, dims=d), high)
            for d, t, high in (("k3-tp8", 1, WIN), ("k3-tp16", 1, TIE), ("k3-tp8", 8, LEFT))
        ),
        replace(point(problem(1, dims="k3-tp8"), 0.5), scenario="nb8"),
        replace(point(problem(1, dims="k3-tp8"), 0.5), column="cold"),
    ]
    graph, cold = heat.maps(points)
    assert (graph.name, cold.name) == ("graph", "cold") and graph.columns == ("k3-tp8", "k3-tp16", "k3-tp8 nb8")
    found = [(tokens, [s.shade if s else None for s in squares]) for tokens, squares in graph.rows]
    assert found == [(1, ["h3", "h5", "h1"]), (8, ["h6", None, None])]
    assert (graph.shared, heat.maps([point(Problem("op", "d", 1, "a", {"q": "1"}), WIN)])[0].shared) == ("", "q=1")
    assert [heat.shade(r) for r in (0.6, 0.601, 0.9, 1.0, 1.03, 1.031)] == ["h1", "h2", "h3", "h4", "h5", "h6"]


def test_an_error_lies_where_its_share_of_what_is_allowed_is() -> None:
    row = {
        "problem": "op/k3-tp8/t1/sm_90a",
        "what": "normal",
        "output": "y",
        "allowed_true": 4e-3,
        "candidate_true": 2e-3,
    }
    (picture,) = plots.errors([row])
    ticks = {words: float(x) for x, words in re.findall(r'<text x="([\d.]+)"[^>]*>(\d+ %)</text>', picture.svg)}
    (x,) = re.findall(r'<circle cx="([\d.]+)" [^>]*class="mine"', picture.svg)
    assert float(x) == pytest.approx(ticks["50 %"], abs=0.2)
    assert "At most 50 % of what is allowed" in picture.svg
    (far,) = plots.errors([{**row, "candidate_true": 4.0}])
    assert "At most 100000 %" in far.svg and plots.errors([{**row, "allowed_true": 0.0}]) == ()


def test_every_point_is_under_the_roof_by_its_share_of_it() -> None:
    made = [point(replace(problem(t), dims="k3-tp8"), WIN) for t in (1, 8, 64)]
    made = [
        replace(p, floor_us=OP.cost(problem(p.tokens, dims="k3-tp8")).bytes / 4.48e6, candidate_us=20.0) for p in made
    ]
    picture = plots.roofline(OP, [*made, replace(made[0], column="cold")])
    assert picture is not None and "3 points." in picture.svg
    assert picture.key[0][1] == "roof: plain read, 4.48 TB/s"
    marks = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3" class="win"', picture.svg)
    (roof,) = re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="roof"', picture.svg)
    ticks = re.findall(r'<text x="36" y="([\d.]+)"[^>]*>([\d.]+)</text>', picture.svg)
    (low, first), (high, last) = ((float(y), math.log10(float(words))) for y, words in (ticks[0], ticks[-1]))
    x1, y1, x2, y2 = map(float, roof)
    shares = []
    for x, y in ((float(a), float(b)) for a, b in marks):
        above = y - (y1 + (x - x1) / (x2 - x1) * (y2 - y1))  # how far the roof is above it
        shares.append(10 ** (-above / (low - high) * (last - first)))
    assert shares == pytest.approx([p.floor_us / 20.0 for p in made], rel=0.03)
    assert plots.roofline(None, made) is None and plots.roofline(OP, []) is None


def kernels(root: Path) -> KernelSet:
    """Two champions of dense_mlp, one after the other, and a rollback."""
    first = make_case("a", {1: WIN, 8: TIE, 64: LEFT}, op="dense_mlp", dims="k3-tp8")
    second = make_case("b", {1: 0.5, 8: WIN}, op="dense_mlp", dims="k3-tp8")
    target = fill(root, first, second, current=CURRENT, key=KEY)
    rollback(target, "dense_mlp")
    return KernelSet(target.path)


def test_the_catalogue_lists_every_op_and_links_what_it_names(tmp_path: Path) -> None:
    made = kernels(tmp_path / "set")
    files = site(made, REGISTRY.ops, CURRENT)
    pages = {name: sound(text) for name, text in files.items()}
    assert set(files) == {
        "index.html",
        "dense_mlp.html",
        *(n for n in files if re.fullmatch(r"dense_mlp-\w{12}-[12]\.html", n)),
    }
    assert len(files) == 4 and files == site(made, REGISTRY.ops, CURRENT)
    assert not [
        link for page in pages.values() for link in page.links if not link.startswith("#") and link not in files
    ]
    rows = re.findall(r'<tr data-state="(\w+)">\s*<th scope="row">(?:<a[^>]*>)?(\w+)', files["index.html"])
    assert [op for _, op in rows] == sorted(REGISTRY.ops)
    assert [op for state, op in rows if state == "promoted"] == ["dense_mlp"]
    (row,) = [Outline(r).text for r in files["index.html"].split("<tr ") if ">dense_mlp</a>" in r]
    assert "2 1 1.12× 0.99× –" in row  # points, ties; gains at 1, 8 and 64 tokens


def test_a_history_has_promotions_and_rollbacks_the_newest_first(tmp_path: Path) -> None:
    files = site(kernels(tmp_path / "set"), REGISTRY.ops, CURRENT)
    body = files["dense_mlp.html"].split("<tbody>")[1].split("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(?:<a[^>]*>)?(?:<code>)?([^<]*)", line) for line in body.split("<tr>")[1:]]
    assert [(r[0], r[2], r[6]) for r in rows] == [
        ("3", "rollback of #2", "0"),
        ("2", "promoted", "0"),
        ("1", "promoted", "2"),
    ]
    assert rows[1][7] == "1.12–2.04×" and "Gains by promotion" in files["dense_mlp.html"]


def test_a_promoted_kernel_is_compared_with_the_champion_before_it(tmp_path: Path) -> None:
    made = kernels(tmp_path / "set")
    files = site(made, REGISTRY.ops, CURRENT)
    first, second = (next(t for n, t in files.items() if n.endswith(f"-{seq}.html")) for seq in (1, 2))
    assert "None: the stock op serves there." in section(first, "difference")
    said = section(second, "difference")
    assert "Lines removed: 1, added: 1." in said and "# a" in said and "# b" in said
    assert serving(made, "dense_mlp", ("sm_90a",)) is not None and serving(made, "dense_mlp", ("sm_103a",)) is None


def test_a_set_cannot_name_a_page_outside_the_folder(tmp_path: Path) -> None:
    made = kernels(tmp_path / "set")
    whole = made.manifest()
    moved = tuple(replace(p, candidate=f"/../{p.candidate}") for p in whole.promotions)
    (made.root / MANIFEST).write_bytes(manifest_bytes(replace(whole, promotions=moved)))
    with pytest.raises(IntegrityError, match="is no part of a file's name"):
        site(made, REGISTRY.ops, CURRENT)


def test_stale_evidence_is_called_so(tmp_path: Path) -> None:
    files = site(kernels(tmp_path / "set"), REGISTRY.ops, Current({"dense_mlp": "d" * 64}, 1))
    assert (
        'data-state="stale"' in files["index.html"]
        and "the contract of dense_mlp has changed" in files["dense_mlp.html"]
    )


def test_junit_counts_a_skip_as_no_pass(promotable: Document, tmp_path: Path) -> None:
    good = ElementTree.fromstring(junit(promotable))
    assert (good.get("tests"), good.get("failures"), good.get("errors"), good.get("skipped")) == ("4", "0", "0", "0")
    made = proven(tmp_path / "runs", tmp_path / "cache")
    with made.run.lock():
        for number, status in enumerate((Status.FAIL, Status.ERROR)):
            folder = made.run.add(Candidate(OP.name, f"# {number}\n", Origin("openai", {})))
            folder.write_result(GateResult("compile", status, "compile.syntax", f"no\x00\ufffe <b>\n{ATTACK}"))
            judge(folder)
    root = ElementTree.fromstring(junit(read(made.run, OP)))
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("12", "1", "1", "9")
    assert [len(s.findall("testcase")) for s in root] == [4, 4, 4]
    (failure,) = root.iter("failure")
    assert failure.get("type") == "compile.syntax" and failure.get("message") == "no\ufffd\ufffd <b>"


def test_the_documented_fields_of_the_json_form_are_those_it_has(promotable: Document) -> None:
    from support.checkout import ROOT

    said = (ROOT / "docs" / "reports.md").read_text().split("## JSON")[1]
    top, inner = (
        set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", part, re.MULTILINE)) for part in said.split("| field of a")
    )
    names = [{n for cell in cells for n in re.findall(r"`(\w+)`", cell)} for cells in (top, inner)]
    document = as_json(promotable)
    assert names == [set(document), set(document["candidates"][0])]
    assert document["schema"] in said


def test_every_file_of_the_pages_is_packaged() -> None:
    import tomllib

    from support.checkout import ROOT

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["kgen"]
    packaged = {path for pattern in data for path in (ROOT / "pipeline").glob(pattern)}
    pages = set((ROOT / "pipeline" / "report" / "pages").iterdir())
    assert len(pages) >= 6 and pages <= packaged


def test_a_template_may_not_use_what_it_was_not_given() -> None:
    import jinja2

    with pytest.raises(jinja2.UndefinedError):
        render("catalogue.html", page_title="x")


def test_the_dims_of_the_fixture_are_served() -> None:
    assert DIMS in OP.pack.served
