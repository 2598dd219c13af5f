"""Report pages in a real browser: on a phone, on a desk, in the dark, on paper, by keyboard, and as axe-core sees them.

Skipped, with the reason, where there is no Chromium (or, for axe-core, no npm to get it with).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Chromium, Page, axe, chromium
from support.loops import OP, source
from support.proven import proven
from support.sets import CONTRACT, KEY, LEFT, TIE, WIN, fill, make_case

from kgen.gates.ingest import Ingested
from kgen.loop.intake import judge, take_in
from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.records import Candidate, GateResult, Origin, Status
from kgen.report import read
from kgen.report.catalogue import site
from kgen.report.page import Before, of_run
from kgen.store import KernelSet

PAGES = ("run.html", "index.html", "dense_mlp.html")
NARROW, WIDE = 390, 1280


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(chromium(), tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue of a set with two champions of one op, and the page of a run with every section."""
    root = tmp_path_factory.mktemp("pages")
    made = proven(root / "runs", root / "cache", text='kernel\ndef kernel(x: int = 1) -> str:\n    return "a" * x  # b')
    with made.run.lock():
        take_in(made.run, Ingested(made.case.evidence, made.case.raw, "own-key"))
        refused = made.run.add(Candidate(OP.name, source("1"), Origin("openai", {"model": "m"})))
        refused.write_result(GateResult("compile", Status.FAIL, "compile.syntax", "line 3: no\n" + "x" * 300))
        judge(refused)
    before = Before("ab" * 32, "# other\ndef kernel(x: int) -> str:\n    pass\n", "#1")
    (root / "run.html").write_text(of_run(read(made.run, OP), before), encoding="utf-8")
    first = make_case("a", {1: WIN, 8: TIE, 64: LEFT}, op="dense_mlp", dims="k3-tp8")
    second = make_case("b", {1: 0.5, 8: WIN}, op="dense_mlp", dims="k3-tp8")
    current = Current({"dense_mlp": CONTRACT}, 1)
    target = fill(root / "set", first, second, current=current, key=KEY)
    for name, text in site(KernelSet(target.path), REGISTRY.ops, current).items():
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def opened(browser: Chromium) -> Iterator[list[Page]]:
    """What a test opens is closed after it."""
    pages: list[Page] = []
    yield pages
    for page in pages:
        page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_loads_nothing_and_complains_of_nothing(
    browser: Chromium, folder: Path, opened: list[Page], name: str, width: int, dark: bool
) -> None:
    page = browser.open(folder / name, width, dark=dark)
    opened.append(page)
    assert page.requests == [(folder / name).as_uri()] and page.problems == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    channels = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(channels[:3]) < 80) if dark else (min(channels[:3]) > 200)
    assert page.shot().startswith(b"\x89PNG")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_core_has_no_complaint(browser: Chromium, folder: Path, opened: list[Page], name: str, dark: bool) -> None:
    rules = axe()
    page = browser.open(folder / name, NARROW if dark else WIDE, dark=dark)
    opened.append(page)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.violations(rules) == []


def test_axe_core_sees_what_is_wrong(browser: Chromium, folder: Path, opened: list[Page]) -> None:
    page = browser.open(folder / "index.html")
    opened.append(page)
    page.evaluate("document.querySelector('p').style.color = '#eee'; document.documentElement.lang = ''")
    assert {line.split(":")[0] for line in page.violations(axe())} == {"color-contrast", "html-has-lang"}


def test_a_script_that_got_into_a_page_does_not_run(browser: Chromium, folder: Path, opened: list[Page]) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    wrong = folder / "wrong.html"
    wrong.write_text(
        text.replace("<main", "<script>window.got = 1</script><img src='x.png' onerror='window.got = 1'><main")
    )
    page = browser.open(wrong)
    opened.append(page)
    assert page.evaluate("window.got === undefined") and len(page.problems) >= 2


def test_on_paper_everything_is_unfolded_and_folded_again_after(
    browser: Chromium, folder: Path, opened: list[Page]
) -> None:
    page = browser.open(folder / "run.html", dark=True)
    opened.append(page)
    closed = "document.querySelectorAll('details:not([open])').length"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.closedOnPaper = {closed}; }})")
    before = page.evaluate(closed)
    assert page.pdf().startswith(b"%PDF")
    assert before > 2 and page.evaluate("window.closedOnPaper") == 0 and page.evaluate(closed) == before


ORDER = (
    "[...document.querySelectorAll('#kernels tbody tr')].filter((r) => !r.hidden)"
    ".map((r) => r.cells[0].innerText.split('\\n')[0])"
)


def test_the_catalogue_is_sorted_and_filtered_by_keyboard(browser: Chromium, folder: Path, opened: list[Page]) -> None:
    page = browser.open(folder / "index.html")
    opened.append(page)
    names = sorted(REGISTRY.ops)
    assert page.evaluate(ORDER) == names
    page.press("Tab", 9)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    page.evaluate("document.querySelectorAll('#kernels th button')[0].focus()")
    for expected in (names, names[::-1]):
        page.press("Enter", 13)
        assert page.evaluate(ORDER) == expected
    for _ in ("up", "down"):  # gain at 1: what has none is last either way
        page.evaluate("document.querySelectorAll('#kernels th button')[6].click()")
        assert page.evaluate(ORDER)[0] == "dense_mlp"
    assert page.evaluate("document.querySelectorAll('#kernels th[aria-sort]').length") == 1
    fire = "dispatchEvent(new Event('input', { bubbles: true }))"
    page.evaluate(f"{{ const i = document.querySelector('input'); i.value = 'MLP gate_up'; i.{fire}; }}")
    assert page.evaluate(ORDER) == ["dense_mlp"]
    assert page.evaluate("document.querySelector('output').textContent") == f"1 of {len(names)} shown"
    page.evaluate(f"{{ const i = document.querySelector('input'); i.value = ''; i.{fire}; }}")
    page.evaluate(
        "{ const s = document.querySelector('select'); s.value = 'promoted'; s.dispatchEvent(new Event('change')); }"
    )
    assert page.evaluate(ORDER) == ["dense_mlp"]


def test_without_scripts_the_catalogue_is_a_plain_table(browser: Chromium, folder: Path, opened: list[Page]) -> None:
    page = browser.open(folder / "index.html", script=False)
    opened.append(page)
    text = page.html()
    assert text.count("<tr data-state=") == len(REGISTRY.ops)
    assert (
        "<button" not in text and "<input" not in text and "hidden" not in text.split("<tbody>")[1].split("</tbody>")[0]
    )
