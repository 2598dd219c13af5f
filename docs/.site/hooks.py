"""What mkdocs needs to make a site of docs/ as it is: the README in front, links that leave the folder as plain text.

The pages are written to be read in the repository too, where such links work. Pages of kernels and reports are made by
commands and come and go: the navigation lists them by what is there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Lists what commands have made."""
    for entry in config.nav:
        if "Kernels" in entry:
            for folder in ("kernels", "reports"):
                made = sorted(p for p in (ROOT / "docs" / folder).glob("*.md") if p.name != "README.md")
                entry["Kernels"] += [
                    {p.stem if folder == "kernels" else f"Report {p.stem}": f"{folder}/{p.name}"} for p in made
                ]
    return config


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=front()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = (ROOT / "docs" / page.file.src_uri).parent
    return LINK.sub(lambda match: inside(match, here), markdown)


def front() -> str:
    """The README, as a page of docs/."""
    return re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8"))


def inside(match: "re.Match[str]", here: Path) -> str:
    """A link to another page, or somewhere else in the world, as it is; one to a file of the repository as its text."""
    image, text, target = match.groups()
    path = target.partition("#")[0]
    if not path or ":" in path:
        return match.group()
    resolved = (here / path).resolve()
    page = resolved.is_relative_to(ROOT / "docs") and not resolved.is_relative_to(ROOT / "docs" / "examples")
    return match.group() if image or (page and resolved.is_file()) else text
