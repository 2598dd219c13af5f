"""Tasks of the nano model: reproducible items, splits that cannot meet, answers that another solver confirms, marks."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest

from kgen.model.nano.packing import EXAMS, Diet, Job, pack, tasks_for
from kgen.model.nano.scoring import mark
from kgen.model.nano.tasks import LONG_CONTEXT, TASKS, Item, item, items, split_of
from kgen.model.nano.vocabulary import (
    ANSWER,
    BOS,
    EOS,
    PAD,
    QUERY,
    SYMBOLS,
    TAGS,
    VOCAB,
    decode,
    encode,
    token_bytes,
)

ALL = sorted(TASKS)
LENGTHS = {
    "recall": (36, 512, 2048),
    "copy": (8, 100, 516),
    "modular": (18, 128),
    "brackets": (12, 96),
    "json": (48, 192),
}
CASES = [(task, length) for task in ALL for length in LENGTHS[task]]


def body(one: Item) -> list[int]:
    """The prompt without its frame."""
    assert one.prompt[:2] == (BOS, TAGS[one.task]) and one.prompt[-1] == ANSWER
    return list(one.prompt[2:-1])


# ---- other solvers: they read the prompt only, by other means than the generator -----------------------------------


def solve_recall(one: Item) -> list[int]:
    inside = body(one)
    cut = inside.index(QUERY)
    follows = dict(pairwise(inside[:cut]))
    return [token for key in inside[cut + 1 :] for token in (key, follows[key])]


def solve_copy(one: Item) -> list[int]:
    return body(one)


def solve_modular(one: Item) -> list[int]:
    names: dict[str, int] = {}
    for line in decode(body(one)).split(";")[:-1]:
        name, formula = line.split("=")
        names[name] = eval(formula.translate({ord(n): f"({v})" for n, v in names.items()})) % 10
    return list(encode("".join(f"{name}{value}" for name, value in names.items())))


def solve_brackets(one: Item) -> list[int]:
    text, before = decode(body(one)), ""
    while text != before:
        before, text = text, re.sub(r"\(\)|\[\]|\{\}|<>", "", text)
    return [encode(char)[0] for char in text[::-1].translate(str.maketrans("([{<", ")]}>"))]


def solve_json(one: Item) -> list[int]:
    schema, facts = decode(body(one)).strip().split("\n")
    said = dict(fact.split("=") for fact in facts.split(";"))
    fields = (field.split(":") for field in schema.split(","))
    texts = (f'"{name}":"{said[name]}"' if kind == "string" else f'"{name}":{said[name]}' for name, kind in fields)
    return list(encode("{" + ",".join(texts) + "}"))


SOLVERS: dict[str, Callable[[Item], list[int]]] = {
    "recall": solve_recall,
    "copy": solve_copy,
    "modular": solve_modular,
    "brackets": solve_brackets,
    "json": solve_json,
}


@pytest.mark.parametrize(("task", "length"), CASES)
def test_another_solver_finds_the_same_answer(task: str, length: int) -> None:
    for one in items(task, "heldout", 20, seed=3, length=length):
        assert [*SOLVERS[task](one), EOS] == list(one.answer)
        assert len(one.prompt) + len(one.answer) <= length


@pytest.mark.parametrize("task", ALL)
def test_items_use_the_length_they_are_given(task: str) -> None:
    short, long = LENGTHS[task][0], LENGTHS[task][-1]
    size = [max(len(one.prompt) + len(one.answer) for one in items(task, "train", 8, length=n)) for n in (short, long)]
    assert size[0] <= short < size[1]


def test_the_prompt_of_a_long_recall_item_fills_the_context() -> None:
    one = item("recall", "heldout", 0, length=LONG_CONTEXT)
    assert len(one.prompt) + len(one.answer) == LONG_CONTEXT
    assert [*solve_recall(one), EOS] == list(one.answer)


def test_recall_asks_over_the_whole_distance() -> None:
    near, far = 1.0, 0.0
    for one in items("recall", "heldout", 30, length=2048):
        for key in one.answer[0:8:2]:
            share = one.prompt.index(key) / len(one.prompt)
            near, far = min(near, share), max(far, share)
    assert near < 0.1 and far > 0.9


# ---- reproducible, disjoint ------------------------------------------------------------------------------------------


def fingerprint() -> str:
    said = [(one.prompt, one.answer, one.schema) for task in ALL for one in items(task, "heldout", 3, seed=5)]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def test_items_are_the_same_in_another_process_and_for_ever() -> None:
    """The constant pins the items: evidence names them by task, split, seed and index only."""
    script = "import test_nano_tasks as t; print(t.fingerprint())"
    run = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r}); {script}"]
    other = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONHASHSEED": "77"})
    assert other.stdout.strip() == fingerprint() == "fceed246496b6a90"


@pytest.mark.parametrize("change", [{"seed": 1}, {"index": 1}, {"length": 100}, {"split": "train"}])
@pytest.mark.parametrize("task", ALL)
def test_every_part_of_the_key_changes_the_item(task: str, change: dict[str, object]) -> None:
    key = {"split": "heldout", "index": 0, "seed": 0, "length": 96}
    first, second = (item(task, **k) for k in (key, {**key, **change}))  # type: ignore[arg-type]
    assert first.prompt != second.prompt


@pytest.mark.parametrize("task", ALL)
def test_splits_cannot_meet(task: str) -> None:
    """Short lengths, where free draws would meet often."""
    short = LENGTHS[task][0]
    train, held = ({one.prompt for one in items(task, s, 150, length=short)} for s in ("train", "heldout"))
    assert train and held and not train & held
    assert {split_of(p) for p in train} == {"train"} and {split_of(p) for p in held} == {"heldout"}


def test_a_split_depends_on_every_token_of_the_prompt() -> None:
    prompt = list(item("copy", "heldout", 0, length=20).prompt)
    for at in range(2, len(prompt) - 1):
        changed = {split_of([*prompt[:at], token, *prompt[at + 1 :]]) for token in SYMBOLS}
        assert changed == {"train", "heldout"}


# ---- marks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ALL)
def test_the_right_answer_passes_whatever_follows_its_end(task: str) -> None:
    for one in items(task, "heldout", 5):
        assert mark(one, one.answer) and mark(one, [*one.answer, 7, EOS, PAD])


@pytest.mark.parametrize("task", ALL)
def test_any_other_token_fails(task: str) -> None:
    one = item(task, "heldout", 2, length=96)
    for at in range(len(one.answer)):
        assert not mark(one, [*one.answer[:at], one.answer[at] + 1, *one.answer[at + 1 :]])


@pytest.mark.parametrize("task", ALL)
def test_an_answer_cut_short_lengthened_or_not_ended_fails(task: str) -> None:
    one = item(task, "heldout", 0)
    assert not mark(one, one.answer[:-1])
    assert not mark(one, [*one.answer[:-2], EOS])
    assert not mark(one, [*one.answer[:-1], one.answer[-2], EOS])
    assert not mark(one, []) and not mark(one, [EOS])


JSON_ITEM = Item(
    "json", "heldout", 0, 0, 128, (), (*encode('{"age":17,"note":"red","unit":true,"path":[1,2]}'), EOS),
    json.dumps({"properties": {
        "age": {"type": "integer"}, "note": {"type": "string"}, "unit": {"type": "boolean"},
        "path": {"type": "array", "items": {"type": "integer"}},
    }}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"unit":true,"age":17,"path":[1,2],"note":"red"}', True),
        ('{ "age" : 17,\n"note":"red", "unit":true,\t"path":[ 1, 2 ] }', True),
        ('{"age":18,"note":"red","unit":true,"path":[1,2]}', False),
        ('{"age":17,"note":"red","unit":1,"path":[1,2]}', False),
        ('{"age":17.0,"note":"red","unit":true,"path":[1,2]}', False),
        ('{"age":"17","note":"red","unit":true,"path":[1,2]}', False),
        ('{"age":17,"note":"red","unit":true,"path":[2,1]}', False),
        ('{"age":17,"note":"red","unit":true,"path":[true,2]}', False),
        ('{"age":17,"note":"red","unit":true}', False),
        ('{"age":17,"note":"red","unit":true,"path":[1,2],"rank":1}', False),
        ('{"age":17,"age":17,"note":"red","unit":true,"path":[1,2]}', False),
        ('{"age":17,"note":"red","unit":true,"path":[1,2]', False),
        ('{"age":17,"note":"red","unit":true,"path":[1,2]}}', False),
        ("[17]", False),
        ("null", False),
    ],
)
def test_json_is_marked_by_what_it_says(text: str, right: bool) -> None:
    assert mark(JSON_ITEM, (*encode(text), EOS)) is right


def test_json_with_a_control_token_or_broken_bytes_fails() -> None:
    whole = JSON_ITEM.answer
    assert mark(JSON_ITEM, whole)
    assert not mark(JSON_ITEM, (*whole[:3], QUERY, *whole[3:]))
    assert not mark(JSON_ITEM, (PAD, *whole))


@pytest.mark.parametrize("index", range(5))
def test_the_schema_describes_the_answer(index: int) -> None:
    one = item("json", "heldout", index)
    schema, value = json.loads(one.schema), json.loads(decode(one.answer[:-1]))
    assert schema["required"] == list(value) == list(schema["properties"])
    kinds = {int: "integer", str: "string", bool: "boolean", list: "array"}
    assert all(schema["properties"][name]["type"] == kinds[type(v)] for name, v in value.items())


# ---- vocabulary ------------------------------------------------------------------------------------------------------


def test_controls_have_no_bytes_and_every_other_token_its_own() -> None:
    pieces = [piece for token in range(VOCAB) if (piece := token_bytes(token)) is not None]
    assert len(set(pieces)) == len(pieces) > 400 and all(pieces)
    assert all(token_bytes(token) is None for token in (PAD, BOS, EOS, ANSWER, QUERY, *TAGS.values()))
    assert {bytes([code]) for code in range(0x20, 0x7F)} <= set(pieces)


@pytest.mark.parametrize("text", ['{"age":17,"note":"red rose"}', "", "zq~ 100\n\t", 'trueish [1,2],"', "Āƿ"])
def test_encoding_keeps_the_text(text: str) -> None:
    assert decode(encode(text)) == text
    assert b"".join(token_bytes(t) or b"" for t in encode(text)) == text.encode()


def test_encoding_takes_the_longest_piece() -> None:
    assert len(encode('":"')) == len(encode("true")) == len(encode("17")) == 1
    assert [token_bytes(t) for t in encode("123")] == [b"12", b"3"]


# ---- batches ---------------------------------------------------------------------------------------------------------


def rows_of(job: Job) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Per row its ids and (place, next token) of what is to be predicted."""
    packed = pack(job)
    ids, positions, targets, owners = (
        memoryview(raw).cast(kind).tolist()
        for raw, kind in ((packed.ids, "h"), (packed.positions, "i"), (packed.targets, "h"), (packed.owners, "i"))
    )
    rows = [(ids[r * packed.length : (r + 1) * packed.length], []) for r in range(packed.rows)]
    for at, target, owner in zip(positions, targets, owners, strict=True):
        rows[owner][1].append((at - owner * packed.length, target))
    return rows


@pytest.mark.parametrize("length", [64, 256, 512])
def test_a_batch_asks_for_exactly_the_answers_of_training_items(length: int) -> None:
    for ids, asked in rows_of(Job(tasks_for(length), "train", 1, 0, 12, length)):
        start = ids.index(ANSWER)
        prompt, answer = tuple(ids[: start + 1]), tuple(token for _, token in asked)
        assert [place for place, _ in asked] == list(range(start, start + len(answer)))
        assert ids[start + 1 : start + len(answer)] == list(answer[:-1]) and not any(ids[start + len(answer) :])
        task = next(name for name, tag in TAGS.items() if tag == ids[1])
        schema = "" if task != "json" else "{}"
        assert [*SOLVERS[task](Item(task, "train", 1, 0, length, prompt, answer, schema)), EOS] == list(answer)
        assert split_of(prompt) == "train"


def test_batches_depend_on_the_job_alone() -> None:
    job = Job(tasks_for(64), "train", 1, 640, 4, 64)
    assert pack(job) == pack(job)
    assert pack(job) != pack(Job(tasks_for(64), "train", 1, 1280, 4, 64))
    assert pack(job) != pack(Job(tasks_for(64), "train", 2, 640, 4, 64))


def test_the_diet_starts_short_and_ends_long() -> None:
    diet = Diet(1, 32768, 16384)
    early, late = ({diet.job(n, p).length for n in range(200)} for p in (0.0, 1.0))
    assert early == {64, 128} and late == {64, 128, 256, 512, 1024, 2048, 16384}
    assert all(Diet(1, 4096, 512).job(n, 1.0).length <= 512 for n in range(50))
    assert {task for n in range(50) for task in Diet(1, 4096, 512, ("copy", "json")).job(n, 1.0).tasks} == {
        "copy",
        "json",
    }


def test_jobs_have_one_number_of_tokens_and_share_no_item() -> None:
    jobs = [Diet(1, 4096, 4096).job(n, 0.5) for n in range(50)]
    assert {job.rows * job.length for job in jobs} == {4096}
    numbers = [at for job in jobs for at in range(job.start, job.start + job.rows)]
    assert len(set(numbers)) == len(numbers)


def test_every_task_is_trained_and_examined() -> None:
    assert {task for length in (64, 128, 256, 512, 1024, 2048) for task in tasks_for(length)} == set(TASKS)
    assert {exam.task for exam in EXAMS} == set(TASKS)
    for exam in EXAMS:
        jobs = exam.jobs(8192, 9)
        assert sum(job.rows for job in jobs) == exam.count and all(job.split == "heldout" for job in jobs)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: item("sorting", "train", 0), "no task 'sorting'"),
        (lambda: item("copy", "test", 0), "no split 'test'"),
        (lambda: item("recall", "train", 0, length=35), "use 36..65536"),
        (lambda: item("recall", "train", 0, length=65537), "use 36..65536"),
        (lambda: item("copy", "train", -1), "negative"),
        (lambda: items("copy", "train", -1), "cannot draw -1"),
        (lambda: encode("naïve"), "no token for 'ï'"),
        (lambda: decode([EOS]), "stands for no text"),
        (lambda: token_bytes(512), "outside the vocabulary"),
        (lambda: Diet(1, 32, 2048), "no row of 32 tokens"),
        (lambda: Diet(1, 4096, 2048, ("copy", "sorting")), "no task 'sorting'"),
    ],
)
def test_odd_arguments_are_refused_in_one_line(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as refusal:
        call()
    assert "\n" not in str(refusal.value)
