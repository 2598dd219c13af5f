"""The documentation as a site: every page is in it, and mkdocs builds it without a warning."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from support.checkout import ROOT

DOCS = ROOT / "docs"


def named(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from named(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = list(named(nav))
    assert set(listed) == {"index.md", "kernels/README.md", *(p.name for p in DOCS.glob("*.md"))}
    assert len(listed) == len(set(listed))


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs", reason="pip install 'kgen[docs]'")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / ".site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[gates](gates.md#codes)", "[gates](gates.md#codes)"),
        ("[agents](../AGENTS.md)", "agents"),
        ("[a run](examples/runs/openai/report.md)", "a run"),
        ("[apart](https://example.org/x)", "[apart](https://example.org/x)"),
        ("[here](#gates)", "[here](#gates)"),
        ("[none](nothing.md)", "none"),
    ],
)
def test_links_that_leave_the_folder_become_their_text(written: str, shown: str, hooks: ModuleType) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="cli.md"))
    assert hooks.on_page_markdown(written, page, None, None) == shown


@pytest.mark.deep
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install 'kgen[docs]'")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {p.relative_to(DOCS).with_suffix("").as_posix() for p in DOCS.rglob("*.md") if "examples" not in p.parts}
    built = {p.relative_to(tmp_path).with_suffix("").as_posix() for p in tmp_path.rglob("*.html")}
    assert {p.replace("README", "index") for p in pages} | {"index"} <= built
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert "fonts.googleapis" not in text and 'src="http' not in text  # nothing is fetched
