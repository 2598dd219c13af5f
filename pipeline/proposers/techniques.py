"""Which technique pages a prompt carries: those that fit the op, and those that answer what was found out.

    chosen(op, pages, archs)               for the system prompt: the same in every question of a run (servers cache it)
    classes(findings, compiled, tokens)    what findings and builds are about, in words of the pages' `answers` lines
    answering(wanted, pages, archs, known) for the part of a prompt that changes: pages that answer these classes

A page says so itself: `tags:` words of ops, `answers:` classes of findings, `archs:` where it does not hold everywhere.
Not covered: what a finding is (kgen.diagnosis).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kgen.contract import Op
from kgen.contract.tensors import Role
from kgen.diagnosis.findings import Finding
from kgen.records import GateResult

FOLDER = "techniques/"
BUDGET = 8_000  # characters, about 2,000 tokens
ANSWERS = 6_000  # characters of pages by diagnosis
MANY_TOKENS = 32  # from here on an ask is about matrix work too
_LINE = re.compile(r"^(tags|answers|archs): (.*)$", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9_.-]{3,}")
_TITLE = re.compile(r"^### (.*)$", re.MULTILINE)

# class -> how a finding shows it. Findings of the compiler are classes themselves (kgen.diagnosis.compile_errors).
CLASSES: Mapping[str, re.Pattern[str]] = {
    "race": re.compile(r"^\[numeric\.race\]"),
    "wait": re.compile(r"^\[wait\]"),
    "spills": re.compile(r"\bspills:|B stack a thread|local memory is used"),
    "bank-conflicts": re.compile(r"bank conflicts"),
    "few-blocks": re.compile(r"only \d+ blocks for \d+ SMs"),
    "waves": re.compile(r"the last wave is nearly empty"),
    "few-bytes": re.compile(r"more bytes in flight"),
    "low-occupancy": re.compile(r"warps an SM hide little latency"),
    "narrow-loads": re.compile(r"narrower than 16 bytes"),
    "no-allocate": re.compile(r"no no-allocate hint"),
}
LAUNCHES, NO_PDL, MATRIX = "launches", "no-pdl", "many-tokens"


@dataclass(frozen=True)
class Answer:
    """Pages in full, and titles of those that stand in the system prompt already."""

    pages: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def words_of(op: Op) -> set[str]:
    """Words of the contract's text, and of what its tensors are."""
    said = set(_WORD.findall(f"{op.name.replace('_', ' ')} {op.title} {op.doc}".lower()))
    if any(t.role is Role.WEIGHT for t in op.tensors):
        said |= {"weights", "bandwidth"}
    if any(t.role is Role.WEIGHT and t.dtype == "bf16" and len(t.shape) == 2 for t in op.tensors):
        said |= {"gemm", "matmul", "skinny"}
    if any(t.role is Role.WEIGHT and t.dtype == "u8" for t in op.tensors):
        said |= {"mxfp4", "e2m1", "e8m0", "scale", "nibble"}
    return said


def chosen(op: Op, pages: Mapping[str, str], archs: Collection[str] = ()) -> list[str]:
    """The names of the pages that share most tags with the op, in that order; ties by name. `archs`: the run's."""
    wanted, picked, left = words_of(op), [], BUDGET
    scores = {name: len(wanted & _words(pages[name], "tags")) for name in _techniques(pages, archs)}
    for name in sorted(scores, key=lambda n: (-scores[n], n)):
        if scores[name] and len(pages[name]) <= left:
            picked.append(name)
            left -= len(pages[name])
    return picked


def classes(findings: Iterable[Finding], compiled: GateResult | None, tokens: Sequence[int] = ()) -> list[str]:
    """In the order of the findings, then those of the launches of a build; `tokens`: the bins that are asked about."""
    found = [name for f in findings for name in (f.code, *(c for c, p in CLASSES.items() if p.search(f.line)))]
    if tokens and min(tokens) > MANY_TOKENS // 2 and max(tokens) >= MANY_TOKENS:
        found.append(MATRIX)
    problems = compiled.evidence.get("problems") if compiled else None
    for facts in problems.values() if isinstance(problems, Mapping) else ():
        launches = facts.get("launches") if isinstance(facts, Mapping) else None
        listed = [x for x in launches if isinstance(x, Mapping)] if isinstance(launches, list | tuple) else []
        if len(listed) > 1:
            pdl = [bool(x["attributes"].get("pdl")) for x in listed if isinstance(x.get("attributes"), Mapping)]
            found += [LAUNCHES] if len(pdl) == len(listed) and all(pdl) else [NO_PDL, LAUNCHES]
    return list(dict.fromkeys(found))


def answering(
    wanted: Sequence[str], pages: Mapping[str, str], archs: Collection[str] = (), known: Collection[str] = ()
) -> Answer:
    """Pages that answer these classes, most urgent class first, within ANSWERS. `known`: names that were shown."""
    urgency = {name: i for i, name in reversed(list(enumerate(wanted)))}
    answers = {
        name: sorted(urgency[w] for w in _words(pages[name], "answers") if w in urgency)
        for name in _techniques(pages, archs)
    }
    ordered = sorted((n for n in answers if answers[n]), key=lambda n: (answers[n][0], -len(answers[n]), n))
    shown, left = list[str](), ANSWERS
    for name in (n for n in ordered if n not in known):
        if len(pages[name]) <= left:
            shown.append(text(pages[name]))
            left -= len(pages[name])
    return Answer(tuple(shown), tuple(title(pages[n]) for n in ordered if n in known))


def title(page: str) -> str:
    """Its heading, e.g. `Technique: persistent grid`."""
    found = _TITLE.search(page)
    return found[1] if found else ""


def text(page: str) -> str:
    """A page without what it says of itself to this module."""
    return re.sub(r"\n{3,}", "\n\n", _LINE.sub("", page))


def _techniques(pages: Mapping[str, str], archs: Collection[str]) -> Iterable[str]:
    """Of the pages that hold on an architecture of the run."""
    for name, page in pages.items():
        only = _words(page, "archs")
        if name.startswith(FOLDER) and (not only or not archs or only & set(archs)):
            yield name


def _words(page: str, line: str) -> set[str]:
    return {word for key, words in _LINE.findall(page) if key == line for word in words.split()}
