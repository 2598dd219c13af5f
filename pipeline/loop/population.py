"""Who of a run's candidates is worth building on: the best per (token range x design family), and what is unlike them.

Pure functions over specimens, which `history` makes from the run folder; the same specimens give the same population.
Not covered: what is asked of them (`plan`).
"""

import ast
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kgen.gates.parsing import PARTS, UNPARSABLE, Looked, children
from kgen.gates.skeleton import once
from kgen.records import GATES

NOVEL = 0.35  # structural distance to everything kept from which a right candidate is kept although it is no best
GAIN = 0.01  # a best counts as improved from this share on
NARROW = 8  # token counts up to here are one range; each range after it doubles
TIMED, STATIC = 0, 1  # tiers of scores: what a clock said comes before what the builds let guess
RIGHT, BUILT, BROKEN = "right", "built", "broken"

# technique -> how a source shows it: the family of a candidate that gives its design no name
TECHNIQUES: Mapping[str, re.Pattern[str]] = {
    "wgmma": re.compile(r"warpgroup|wgmma"),
    "mma": re.compile(r"\bwarp\.Mma|mma_atom|mma_m16|mma\.sync"),
    "tma": re.compile(r"\btma_|make_tiled_tma|CopyBulk|cp_async_bulk"),
    "cp.async": re.compile(r"CopyG2S|cp_async(?!_bulk)"),
    "cluster": re.compile(r"cluster"),
    "pdl": re.compile(r"griddepcontrol|use_pdl|\bpdl\b"),
}


CONTEXT = ast.expr_context  # whether a name is read or written
# Kinds of node -> their fields that hold nodes, as PARTS has them, and operators too; other kinds are looked through.
FIELDS: Mapping[type[ast.AST], tuple[str, ...]] = {
    **PARTS,
    **{kind: () for above in (ast.operator, ast.unaryop, ast.boolop, ast.cmpop) for kind in above.__subclasses__()},
    ast.BinOp: ("left", "op", "right"),
    ast.UnaryOp: ("op", "operand"),
    ast.BoolOp: ("op", "values"),
    ast.Compare: ("left", "ops", "comparators"),
    ast.AugAssign: ("target", "op", "value"),
}


@dataclass(frozen=True, order=True)
class Score:
    """Lower is better. `value`: mean ratio to the best baseline (TIMED), or static µs a point (STATIC)."""

    tier: int
    value: float

    def better_than(self, other: "Score | None") -> bool:
        """Whether it improves on the other by more than noise, or is of a better kind."""
        if other is None or self.tier != other.tier:
            return other is None or self.tier < other.tier
        return self.value < other.value * (1.0 - GAIN)

    @property
    def words(self) -> str:
        return f"ratio {self.value:.3f}" if self.tier == TIMED else f"static cost {self.value:.2f} µs"


@dataclass(frozen=True)
class Specimen:
    """A judged candidate, as a plan sees it. Ranges are keys as `span` gives them."""

    id: str
    number: int  # its place in the run
    round: int
    kind: str  # of the ask that it answers
    parents: tuple[str, ...]
    state: str  # RIGHT, BUILT (not taken to the end) or BROKEN (a gate refused it)
    stage: int  # gates that it came through
    code: str  # of the gate that stopped it, else of the last one
    family: str  # of the candidate as a whole
    designs: Mapping[str, str] = field(default_factory=dict)  # range -> family there
    scores: Mapping[str, Score] = field(default_factory=dict)  # range -> score; empty where it is not right
    bins: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # range -> token bins
    roofline: float = 0.0  # geometric mean over the timed points; 0 without any
    shape: frozenset[str] = frozenset()

    @property
    def right(self) -> bool:
        return self.state == RIGHT


@dataclass(frozen=True)
class Member:
    """A candidate that is kept. `ranges`: where it is the best of its family; empty for a novel one."""

    specimen: Specimen
    ranges: tuple[str, ...]
    leads: tuple[str, ...]  # ranges where it is the best of all
    distance: float = 0.0  # to the nearest other member, of a novel one


@dataclass(frozen=True)
class Population:
    """`members`: every best and the novel ones; `beam`: those whose turn it is to be built on, at most the width."""

    members: tuple[Member, ...]
    beam: tuple[Member, ...]

    @property
    def leaders(self) -> tuple[Member, ...]:
        """The members that are the best of all at some range."""
        return tuple(m for m in self.members if m.leads)


def span(tokens: int) -> str:
    """The range of token counts that a bin belongs to: 1-8, 9-16, 17-32, 33-64, ..."""
    high = max(NARROW, 1 << (tokens - 1).bit_length())
    return f"{1 if high == NARROW else high // 2 + 1}-{high}"


def span_order(name: str) -> int:
    return int(name.split("-")[1])


def population(history: Iterable[Specimen], beam: int) -> Population:
    """`beam` >= 1: how many members are built on; as many novel ones are kept at most."""
    right = [s for s in history if s.right]
    cells: dict[tuple[str, str], Specimen] = {}
    leads: dict[str, Specimen] = {}
    for s in right:  # in the order of the run: only a better one takes a place
        for where, score in s.scores.items():
            cell = (where, s.designs.get(where, s.family))
            if cell not in cells or score < cells[cell].scores[where]:
                cells[cell] = s
            if where not in leads or score < leads[where].scores[where]:
                leads[where] = s
    bests = {s.id: s for s in cells.values()}
    ordered = sorted(bests.values(), key=lambda s: _priority(s, leads))
    members = [_member(s, cells, leads) for s in ordered]
    novel = _novel([s for s in right if s.id not in bests], [m.specimen for m in members], beam)
    everyone = (*members, *novel)
    return Population(everyone, everyone[:beam])


def _priority(s: Specimen, leads: Mapping[str, Specimen]) -> tuple[bool, float, int]:
    """Leaders first, then by how far behind the leader of its range a candidate is, then the earlier one."""
    behind = [_behind(s.scores[w], leads[w].scores[w]) for w in s.scores]
    return s.id not in {x.id for x in leads.values()}, min(behind, default=float("inf")), s.number


def _behind(score: Score, lead: Score) -> float:
    return score.value / lead.value if score.tier == lead.tier and lead.value > 0 else float("inf")


def _member(s: Specimen, cells: Mapping[tuple[str, str], Specimen], leads: Mapping[str, Specimen]) -> Member:
    mine = sorted({where for (where, _), best in cells.items() if best.id == s.id}, key=span_order)
    return Member(s, tuple(mine), tuple(w for w in mine if leads[w].id == s.id))


def _novel(rest: Sequence[Specimen], kept: Sequence[Specimen], most: int) -> list[Member]:
    """The farthest from everything kept, one after the other, while they are far enough."""
    left, near, found = list(rest), list(kept), list[Member]()
    while left and len(found) < most:
        distances = [(min((distance(s.shape, k.shape) for k in near), default=1.0), -s.number, s) for s in left]
        far, _, chosen = max(distances, key=lambda d: d[:2])
        if far < NOVEL:
            break
        found.append(Member(chosen, (), (), far))
        near.append(chosen)
        left.remove(chosen)
    return found


def pairs(found: Population, done: Collection[frozenset[str]]) -> list[tuple[Member, Member]]:
    """Leaders of different ranges; `done` are the pairs (ids) that have been crossed already."""
    leaders = found.leaders
    return [
        (a, b)
        for i, a in enumerate(leaders)
        for b in leaders[i + 1 :]
        if frozenset((a.specimen.id, b.specimen.id)) not in done
    ]


def last_gain(history: Iterable[Specimen]) -> int:
    """The last round that brought something: the first right candidate, a better best of a range or a first one there;
    while nothing is right, a gate further. 0: none did."""
    best: dict[str, Score] = {}
    furthest, when = -1, 0
    for s in sorted(history, key=lambda s: (s.round, s.number)):
        if s.right:
            better = {w: score for w, score in s.scores.items() if score.better_than(best.get(w))}
            when = s.round if better or furthest < len(GATES) else when
            best.update(better)
            furthest = len(GATES)
        elif s.stage > furthest:
            furthest, when = s.stage, s.round
    return when


@functools.lru_cache(maxsize=256)  # every round asks again for all candidates of the run
def shape(source: str) -> frozenset[str]:
    """The structure of a source: which kinds of node stand in which, and the names that it calls. Numbers and names of
    its own do not count, so two points of one template are the same shape."""
    try:
        return once("shape", source, _structure)
    except UNPARSABLE:
        return frozenset(re.findall(r"[A-Za-z_]\w+", source))


def _structure(seen: Looked) -> frozenset[str]:
    found = {f"call {_dotted(node.func)}" for node in seen.kinds.get(ast.Call, ())}
    for above, nodes in seen.kinds.items():
        kinds = {kind for kind in _within(nodes, FIELDS.get(above)) if not issubclass(kind, CONTEXT)}
        found |= {f"{above.__name__}>{kind.__name__}" for kind in kinds}
    return frozenset(found)


def _within(nodes: Sequence[ast.AST], names: Sequence[str] | None) -> set[type[ast.AST]]:
    """The kinds of node in these fields of nodes of one kind; None: in all."""
    if names is None:
        return {child.__class__ for node in nodes for child in children(node)}
    values = [getattr(node, name) for name in names for node in nodes]
    lists = [value for value in values if value.__class__ is list]
    kinds = {value.__class__ for value in (*values, *itertools.chain.from_iterable(lists))}
    return kinds - {list, type(None)}


def _dotted(node: ast.expr) -> str:
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def distance(a: frozenset[str], b: frozenset[str]) -> float:
    """0: the same structure; 1: nothing in common (Jaccard)."""
    return 1.0 - len(a & b) / len(a | b) if a | b else 0.0


def techniques(source: str) -> str:
    """The family of a source by what it uses, e.g. `mma+pdl`; `plain` where it uses none of them."""
    return "+".join(name for name, pattern in TECHNIQUES.items() if pattern.search(source)) or "plain"
