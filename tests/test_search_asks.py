"""What `search` makes of the asks of a plan: neighbours of one parent, mixtures of two, fresh points, named parents."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.requests import passing, request

from kgen.proposers.base import Ask, ProposalRequest
from kgen.proposers.search import SearchProposer
from kgen.records import Candidate, Verdict

OPS = ("moe_shared", "oproj_partial")


def asked(folder: Path, op: str, kind: str, *parents: Candidate, **more: Any) -> ProposalRequest:
    ask = Ask(1, kind, tuple(p.id for p in parents), count=4)
    history = tuple((c, Verdict(c.id, (passing(),))) for c in parents)
    return request(folder, op, ask=ask, count=4, round=2, history=history, **more)


def designs(folder: Path, op: str, count: int = 12) -> list[Candidate]:
    return list(SearchProposer().propose(request(folder, op, count=count, ask=Ask(1, "design", count=count), round=1)))


def values(candidate: Candidate) -> dict[str, Any]:
    """The choices by name; the rows of a tuning table are one choice each."""
    found = dict(candidate.origin.detail["values"])
    rows = found.pop("tuning", ())
    return {**found, **{f"row {i}": row for i, row in enumerate(rows)}}


def changed(a: Candidate, b: Candidate) -> list[str]:
    mine, other = values(a), values(b)
    return [name for name in mine if mine[name] != other.get(name)]


@pytest.mark.parametrize("op", OPS)
def test_an_optimisation_changes_one_choice_of_its_parent(op: str, tmp_path: Path) -> None:
    parent = designs(tmp_path, op)[-1]
    found = SearchProposer().propose(asked(tmp_path, op, "optimise", parent)).candidates
    assert len(found) == 4 and len({c.id for c in found} | {parent.id}) == 5
    for child in found:
        assert child.origin.detail["parents"] == [parent.id]
        assert child.origin.detail["template"] == parent.origin.detail["template"]
        assert len(changed(parent, child)) == 1


@pytest.mark.parametrize("op", OPS)
def test_a_crossover_takes_each_choice_from_either_parent(op: str, tmp_path: Path) -> None:
    drawn = designs(tmp_path, op, 24)
    first, second = max(
        ((a, b) for a in drawn for b in drawn if a.origin.detail["template"] == b.origin.detail["template"]),
        key=lambda pair: len(changed(*pair)) if len(values(pair[0])) == len(values(pair[1])) else 0,
    )
    assert len(changed(first, second)) >= 2
    children = SearchProposer().propose(asked(tmp_path, op, "crossover", first, second)).candidates
    mixed = [c for c in children if c.origin.detail["parents"] == [first.id, second.id]]
    assert mixed
    for child in mixed:
        theirs = (values(first), values(second))
        assert all(value in (theirs[0][name], theirs[1][name]) for name, value in values(child).items())


def test_asks_are_answered_alike_by_seed_and_not_with_what_the_round_has_already(tmp_path: Path) -> None:
    parent = designs(tmp_path, "moe_shared")[-1]
    first = asked(tmp_path, "moe_shared", "optimise", parent)
    one, two = (SearchProposer().propose(first) for _ in range(2))
    assert [c.id for c in one] == [c.id for c in two]
    assert [c.id for c in SearchProposer().propose(replace(first, seed=5))] != [c.id for c in one]
    taken = frozenset(c.id for c in one)
    assert not taken & {c.id for c in SearchProposer().propose(replace(first, taken=taken))}


def test_a_restart_and_a_parent_of_another_kind_give_fresh_points(tmp_path: Path) -> None:
    foreign = Candidate("moe_shared", "x = 1\n", designs(tmp_path, "moe_shared")[0].origin.__class__("mailbox"))
    for kind, parents in (("restart", ()), ("optimise", (foreign,))):
        found = SearchProposer().propose(asked(tmp_path, "moe_shared", kind, *parents)).candidates
        assert len(found) == 4 and all(c.origin.detail["parents"] == [] for c in found)
