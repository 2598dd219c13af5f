"""The lineage tree of a run in a terminal, as indented lines elsewhere, and its decisions as lines."""

import sys
from typing import TYPE_CHECKING

from kgen.cli import output

if TYPE_CHECKING:
    from rich.tree import Tree

    from kgen.report import Document
    from kgen.report.lineage import Branch

STYLES = {"promotable": "green", "staged": "cyan", "failed": "red", "error": "yellow"}


def show_lineage(document: "Document") -> None:
    """On stdout. Nothing of a run without candidates."""
    from kgen.report import lineage

    branches = lineage.roots(lineage.nodes(document))
    if branches and sys.stdout.isatty():
        _draw(branches)
    else:
        for line in lineage.plain(branches):
            output.data(line)
    for line in lineage.decision_lines(document.plans):
        output.data(line)


def _draw(branches: "list[Branch]") -> None:
    from rich.console import Console
    from rich.tree import Tree

    tree = Tree("lineage", hide_root=True)
    for branch in branches:
        _grow(tree, branch)
    Console(highlight=False).print(tree)


def _grow(tree: "Tree", branch: "Branch") -> None:
    from rich.text import Text

    from kgen.report.lineage import said

    inner = tree.add(Text(said(branch), style=STYLES.get(branch.node.state, "")))
    for child in branch.children:
        _grow(inner, child)
