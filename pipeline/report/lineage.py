"""Who descends from whom in a run, and what was decided: nodes and edges, a tree of them, a Mermaid graph.

    nodes(doc) -> tuple[Node, ...]      in the order of the run
    roots(nodes) -> list[Branch]        a candidate stands below its first parent; a second one is named beside it

Not covered: drawing a tree in a terminal (kgen.cli.lineage).
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.loop.plans import STOP, Decision, Plan
from kgen.proposers.base import DESIGN
from kgen.records import to_json
from kgen.report.document import Document, Entry
from kgen.report.text import details

KEPT = ("keep", "novel")
MOST_NODES = 60  # of a graph in the report: more than that nobody reads


@dataclass(frozen=True)
class Node:
    """A candidate. `parents` are numbers of the run; `code`: of the first gate that refused it; `best` in words."""

    number: int
    id: str
    round: int
    kind: str
    parents: tuple[int, ...]
    state: str
    code: str
    best: str

    @property
    def label(self) -> str:
        ended = self.code or self.state
        return ", ".join(part for part in (f"{self.number} {self.kind}", ended, self.best) if part)


@dataclass(frozen=True)
class Branch:
    node: Node
    children: "tuple[Branch, ...]"

    @property
    def other_parents(self) -> tuple[int, ...]:
        return self.node.parents[1:]


def nodes(doc: Document) -> tuple[Node, ...]:
    numbers = {e.candidate.id: e.number for e in doc.entries}
    rounds = {name: r.number for r in doc.rounds for name in r.candidates}
    return tuple(_node(e, numbers, rounds) for e in doc.entries)


def _node(entry: Entry, numbers: dict[str, int], rounds: dict[str, int]) -> Node:
    detail = entry.candidate.origin.detail
    listed = detail.get("parents", ())
    ids = [str(p) for p in listed] if isinstance(listed, list | tuple) else []
    failed = entry.verdict.failed
    return Node(
        number=entry.number,
        id=entry.candidate.id[:12],
        round=rounds.get(entry.folder, 0),
        kind=str(detail.get("kind", DESIGN))[:20],
        parents=tuple(numbers[p] for p in ids if numbers.get(p, entry.number) < entry.number),
        state=entry.state,
        code=failed.code if failed else "",
        best=_best(entry),
    )


def _best(entry: Entry) -> str:
    if math.isfinite(entry.ratio):
        return f"ratio {entry.ratio:.3f}"
    if entry.ranked and math.isfinite(entry.ranked.us):
        return f"{'measured' if entry.ranked.measured else 'cost'} {entry.ranked.us:.2f} µs"
    return ""


def roots(found: Sequence[Node]) -> list[Branch]:
    return [_branch(n, found) for n in found if not n.parents]


def _branch(node: Node, found: Sequence[Node]) -> Branch:
    return Branch(node, tuple(_branch(n, found) for n in found if n.parents and n.parents[0] == node.number))


def plain(branches: Sequence[Branch], depth: int = 0) -> Iterator[str]:
    """One line a candidate, two spaces deeper a generation."""
    for branch in branches:
        yield "  " * depth + said(branch)
        yield from plain(branch.children, depth + 1)


def said(branch: Branch) -> str:
    node = branch.node
    other = "".join(f" × {number}" for number in branch.other_parents)
    ended = ", ".join(part for part in (node.code or node.state, node.best) if part)
    return f"{node.number} {node.id} {node.kind}{other}: {ended} (round {node.round})"


def decided(plans: Sequence[Plan]) -> list[tuple[int, Decision]]:
    """By round: every ask, what was given up, the end; what the population kept only of the last plan."""
    last = plans[-1].number if plans else 0
    return [(p.number, d) for p in plans for d in p.decisions if d.what not in KEPT or p.number == last]


def decision_lines(plans: Sequence[Plan]) -> list[str]:
    lines = []
    for number, d in decided(plans):
        count = int(d.numbers.get("count", 1))
        about = f" {', '.join(c[:12] for c in d.candidates)}" if d.candidates else ""
        many = f" × {count}" if count > 1 else ""
        head = "end" if d.what == STOP else f"round {number}: {d.what}{many}{about}"
        lines.append(f"{head}: {d.reason}")
    return lines


def as_json(doc: Document) -> dict[str, Any]:
    """Nodes, edges (parent, child) and all plans, schema `kgen.lineage/1`."""
    found = nodes(doc)
    return {
        "schema": "kgen.lineage/1",
        "nodes": [{**n.__dict__, "parents": list(n.parents)} for n in found],
        "edges": [[parent, n.number] for n in found for parent in n.parents],
        "plans": [to_json(p) for p in doc.plans],
    }


def lineage(doc: Document) -> str:
    """A section of the report: the graph, "" where no candidate descends from another."""
    found = nodes(doc)
    if not any(n.parents for n in found) or len(found) > MOST_NODES:
        return ""
    return details("Lineage", f"```mermaid\n{mermaid(found)}\n```")


def mermaid(found: Sequence[Node]) -> str:
    lines = ["graph TD"]
    lines += [f'  n{n.number}["{_inert(n.label)}"]' for n in found]
    lines += [f"  n{parent} --> n{n.number}" for n in found for parent in n.parents]
    return "\n".join(lines)


def _inert(text: str) -> str:
    """Letters, numbers and a few marks: nothing that ends a label."""
    return re.sub(r"[^\w .,:µ×-]", "", text)
