"""What runs taught, as small dated records that later runs can ask for: one file a lesson, <runs>/lessons/<id>.json.

    learn(folder, op, run, date, observed)    take in what one run showed; the same run again changes nothing
    read_all(folder) -> Kept                  every lesson, and one line for each damaged file
    retrieve(folder, op, words, most)         what is worth knowing for an op: its own lessons, then general ones
    told(folder, op, archs, words)            the few that a prompt carries, within TOLD_TOKENS
    retire(folder, id, why)                   put a lesson out of use by hand

A lesson answers a question (is this code repaired? does this design come through? which design leads at this range?).
Lessons that answer one question differently are rivals: those with less support than the best supported one are
retired; what a clock said counts for more than what builds let guess. Retired ones are kept, with the reason, and come
back when runs bear them out after all, unless a person retired them. Not covered: what a run shows (`learning`).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from kgen.diagnosis.shown import tokens
from kgen.records import canonical_json, one_line, sha256_bytes
from kgen.records.codec import OPTIONAL
from kgen.store.documents import json_bytes, read_record
from kgen.store.durable import DURABLE, locked
from kgen.store.errors import IntegrityError

FOLDER = "lessons"
REPAIRED, UNREPAIRED, THROUGH, REFUSED, FASTEST, CHEAPEST = (
    "repaired",
    "not-repaired",
    "through-the-numbers",
    "refused-by-the-numbers",
    "fastest",
    "cheapest",
)
KINDS = (REPAIRED, UNREPAIRED, THROUGH, REFUSED, FASTEST, CHEAPEST)
GENERAL = (REPAIRED, UNREPAIRED)  # kinds that say something about any op
QUESTIONS = {REPAIRED: "repair", UNREPAIRED: "repair", THROUGH: "numbers", REFUSED: "numbers"}
AT = " at "  # between a design and its range in a subject
LINKS, MOST = 8, 6
TOLD, TOLD_TOKENS = 4, 400  # lessons in a prompt, and what they may take of it
KIN = 2  # parts of a name that ops of one family share, e.g. mla_in_proj and kda_in_proj
BY_HAND = "by hand: "
_NAME = re.compile(r"([0-9a-f]{12})\.json")
_WORD = re.compile(r"[a-z0-9_+.-]{2,}")


@dataclass(frozen=True, order=True)
class Link:
    """Where it can be looked up: a run, a candidate's short id, and the code that a gate gave it."""

    SCHEMA: ClassVar[str] = "kgen.lesson-link/1"
    run: str
    candidate: str
    code: str


@dataclass(frozen=True)
class Seen:
    """How often one run bore a lesson out; `date` is when it was begun (UTC), `words` its numbers, `archs` what it
    built for (empty in records of before they were kept)."""

    SCHEMA: ClassVar[str] = "kgen.lesson-seen/1"
    run: str
    date: str
    count: int
    words: str = ""
    archs: tuple[str, ...] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True)
class Lesson:
    """`support` and `against`: how often runs bore it out, and how often its rivals. `retired`: why, "" in use."""

    SCHEMA: ClassVar[str] = "kgen.lesson/1"
    id: str
    op: str
    kind: str
    subject: str  # a code at a gate, a design, or a design at a range of tokens
    claim: str
    support: int
    against: int
    first: str
    last: str
    evidence: tuple[Link, ...]
    seen: tuple[Seen, ...]
    retired: str = ""


@dataclass(frozen=True)
class Observed:
    """What one run shows for a lesson: `count` times, with its numbers in `words`."""

    kind: str
    subject: str
    count: int
    evidence: tuple[Link, ...]
    words: str = ""


@dataclass(frozen=True)
class Kept:
    """`damaged`: one line for each file that cannot be read; such files are left as they are."""

    lessons: tuple[Lesson, ...]
    damaged: tuple[str, ...] = ()


def lesson_id(op: str, kind: str, subject: str) -> str:
    return sha256_bytes(canonical_json([op, kind, subject]))[:12]


def read_all(folder: Path) -> Kept:
    """In the order of their ids."""
    lessons, damaged = [], []
    for path in sorted(p for p in folder.glob("*.json") if _NAME.fullmatch(p.name)):
        try:
            lessons.append(_read(path))
        except IntegrityError as error:
            damaged.append(str(error))
    return Kept(tuple(lessons), tuple(damaged))


def _read(path: Path) -> Lesson:
    found = read_record(Lesson, path)
    if not found.id == path.stem == lesson_id(found.op, found.kind, found.subject) or found.kind not in KINDS:
        raise IntegrityError(f"{path} is damaged: it is not the lesson that its name says; remove it")
    return found


def learn(folder: Path, op: str, run: str, date: str, observed: Iterable[Observed], archs: Sequence[str] = ()) -> Kept:
    """The lessons afterwards. What the same run showed before is replaced. `archs`: the run's. Raises StoreError."""
    DURABLE.make_folder(folder)
    with locked(folder):
        kept = read_all(folder)
        before = {x.id: x for x in kept.lessons}
        lessons = {i: _without(x, run) if x.op == op else x for i, x in before.items()}
        for one in observed:
            found = lesson_id(op, one.kind, one.subject)
            if found not in lessons and (folder / f"{found}.json").exists():
                continue  # damaged: said, and never written over
            old = lessons.get(found) or Lesson(found, op, one.kind, one.subject, "", 0, 0, "", "", (), ())
            lessons[found] = _with(old, Seen(run, date, one.count, one.words, tuple(archs)), one.evidence)
        settled = _settled(lessons.values())
        for lesson in settled:
            if lesson != before.get(lesson.id):
                DURABLE.write(folder / f"{lesson.id}.json", json_bytes(lesson))
    return Kept(settled, kept.damaged)


def _without(lesson: Lesson, run: str) -> Lesson:
    if all(s.run != run for s in lesson.seen):
        return lesson
    links = tuple(e for e in lesson.evidence if e.run != run)
    return replace(lesson, seen=tuple(s for s in lesson.seen if s.run != run), evidence=links)


def _with(lesson: Lesson, seen: Seen, links: Sequence[Link]) -> Lesson:
    """The newest links are kept: names of runs sort as runs were begun."""
    merged = tuple(sorted({*lesson.evidence, *links}))[-LINKS:]
    return replace(lesson, seen=tuple(sorted((*lesson.seen, seen), key=lambda s: s.run)), evidence=merged)


def _settled(lessons: Iterable[Lesson]) -> tuple[Lesson, ...]:
    """With counts, dates, claims and retirements as all that was seen has them."""
    counted = [replace(x, support=sum(s.count for s in x.seen)) for x in sorted(lessons, key=lambda x: x.id)]
    groups: dict[tuple[str, str], list[Lesson]] = {}
    for lesson in counted:
        groups.setdefault((lesson.op, _question(lesson)), []).append(lesson)
    return tuple(sorted((_settle(x, group) for group in groups.values() for x in group), key=lambda x: x.id))


def _question(lesson: Lesson) -> str:
    if lesson.kind in QUESTIONS:
        return f"{QUESTIONS[lesson.kind]} {lesson.subject}"
    return f"best {lesson.subject.rpartition(AT)[2]}"


def _answer(lesson: Lesson) -> str:
    return lesson.kind if lesson.kind in QUESTIONS else lesson.subject


def _strength(lesson: Lesson) -> tuple[bool, int]:
    return lesson.kind == FASTEST, lesson.support


def _settle(lesson: Lesson, group: Sequence[Lesson]) -> Lesson:
    """`group`: the lessons on its question, itself among them."""
    rivals = [x for x in group if _answer(x) != _answer(lesson) and not x.retired.startswith(BY_HAND) and x.support]
    stronger = [x for x in rivals if _strength(x) > _strength(lesson)]
    against = sum(x.support for x in rivals)
    dates = [s.date for s in lesson.seen] or [lesson.first, lesson.last]
    claim = _claim(lesson, against)
    done = replace(lesson, against=against, first=min(dates), last=max(dates), claim=claim)
    if lesson.retired.startswith(BY_HAND):
        return done
    if not lesson.support:
        return replace(done, retired="the run that it came from shows it no more")
    if not stronger:
        return replace(done, retired="")
    best = max(stronger, key=lambda x: (_strength(x), x.id))
    return replace(done, retired=f"contradicted by {best.id} ({best.kind} {best.subject}, {best.support} times)")


def _claim(lesson: Lesson, against: int) -> str:
    """One plain sentence with the numbers; the words of the newest run at its end."""
    n, of = lesson.support, lesson.support + against
    design, _, where = lesson.subject.rpartition(AT)
    said = {
        REPAIRED: f"{lesson.subject} was repaired in {n} of {of} tries",
        UNREPAIRED: f"{lesson.subject} was not repaired in {n} of {of} tries",
        THROUGH: f"design {lesson.subject} came through the numbers with {n} of {of} candidates",
        REFUSED: f"design {lesson.subject} was refused by the numbers with {n} of {of} candidates",
        FASTEST: f"at {where} tokens design {design} was the fastest in {n} of {of} runs",
        CHEAPEST: f"at {where} tokens design {design} had the lowest static cost in {n} of {of} runs",
    }[lesson.kind]
    words = lesson.seen[-1].words if lesson.seen else ""
    return one_line(f"{said} ({words})" if words else said)


def retrieve(folder: Path, op: str, words: str = "", most: int = MOST) -> tuple[Lesson, ...]:
    """The op's own lessons, then those of other ops that say something about any; in each those that share most words
    with `words`, then the best supported. Never retired ones. `most` at the most, and never more than 6."""
    wanted = _words(words)
    usable = [x for x in read_all(folder).lessons if not x.retired and (x.op == op or x.kind in GENERAL)]
    ordered = sorted(usable, key=lambda x: (x.op != op, -len(wanted & _words(_text(x))), -x.support, x.id))
    return tuple(ordered[: max(0, min(most, MOST))])


def told(folder: Path, op: str, archs: Collection[str] = (), words: str = "") -> str:
    """As `page`, for a prompt: at most TOLD lessons in TOLD_TOKENS, "" without any. Foreign text: to be quoted.

    The op's own first, then those of ops of its family, then on codes from any; in each those of the run's `archs`,
    then those that share most words with `words`, then the best supported. Never retired ones, nor any that as much
    speaks against as for. Raises StoreError.
    """
    wanted = _words(words)
    found = [x for x in read_all(folder).lessons if not x.retired and x.support > x.against and _near(x, op)]

    def order(x: Lesson) -> tuple[bool, bool, bool, int, int, str]:
        shared = len(wanted & _words(_text(x)))
        return x.op != op, not _kin(x.op, op), _elsewhere(x, archs), -shared, -x.support, x.id

    lines: list[str] = []
    for line in (_line(x) for x in sorted(found, key=order)):
        if len(lines) < TOLD and tokens("\n".join([*lines, line])) <= TOLD_TOKENS:
            lines.append(line)
    return "\n".join(lines)


def _near(lesson: Lesson, op: str) -> bool:
    """Designs say something within a family only, codes anywhere."""
    return lesson.op == op or lesson.kind in GENERAL or _kin(lesson.op, op)


def _kin(one: str, other: str) -> bool:
    return one == other or len(set(one.split("_")) & set(other.split("_"))) >= KIN


def _elsewhere(lesson: Lesson, archs: Collection[str]) -> bool:
    """Whether it is known to come from other architectures only."""
    known = {arch for s in lesson.seen for arch in s.archs}
    return bool(known and archs) and not known & set(archs)


def _text(lesson: Lesson) -> str:
    return f"{lesson.op} {lesson.kind} {lesson.claim}"


def _words(text: str) -> set[str]:
    """Also the parts of words with dots and dashes: `compile.name` fits `name`."""
    whole = _WORD.findall(text.lower())
    return {*whole, *(part for word in whole for part in re.split(r"[.+-]", word) if part)}


def page(lessons: Sequence[Lesson]) -> str:
    """One line a lesson, with its id, date and where to look; plain text of foreign names."""
    return "\n".join(_line(lesson) for lesson in lessons)


def _line(lesson: Lesson) -> str:
    links = ", ".join(f"{e.run}/{e.candidate} {e.code}" for e in lesson.evidence[-2:])
    return one_line(f"{lesson.id} {lesson.op}, {lesson.last[:10]}: {lesson.claim}; see {links or 'nothing kept'}")


def retire(folder: Path, name: str, why: str) -> Lesson:
    """`name`: an id, or how it begins. Raises ValueError (one line), StoreError."""
    if not why.strip():
        raise ValueError("say why: --why TEXT")
    if not folder.is_dir():
        raise ValueError(f"there are no lessons in {folder}")
    with locked(folder):
        lessons = {x.id: x for x in read_all(folder).lessons}
        found = [x for x in lessons.values() if name and x.id.startswith(name)]
        if len(found) != 1:
            raise ValueError(f"{len(found)} lessons in {folder} are called {name!r}; kgen lessons lists them")
        lessons[found[0].id] = replace(found[0], retired=BY_HAND + one_line(why.strip()))
        settled = {x.id: x for x in _settled(lessons.values())}
        before = {**lessons, found[0].id: found[0]}
        for lesson in settled.values():
            if lesson != before[lesson.id]:
                DURABLE.write(folder / f"{lesson.id}.json", json_bytes(lesson))
    return settled[found[0].id]
