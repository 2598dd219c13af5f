"""Records in files: the form in which they are written, and that a text is made a record once.

Not covered: what the files of a run hold (test_store_runs), and strictness on reading (test_fuzz_targets).
"""

import enum
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgen.loop.rounds import Ranked
from kgen.records import Candidate, GateResult, Origin, Status, to_json
from kgen.records.codec import OPTIONAL
from kgen.store import IntegrityError
from kgen.store.candidates import parse_builds
from kgen.store.documents import Kept, json_bytes, parse_record, read_record

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_values_are_written_as_the_standard_library_writes_them(value: Any) -> None:
    wanted = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    assert json_bytes(value) == wanted.encode("utf-8", "surrogatepass") + b"\n"


def test_a_record_is_written_in_this_form() -> None:
    result = GateResult("compile", Status.PASS, "compile.pass", "ä", {"b": [1, 2.5], "a": {}, "n": []}, float("inf"))
    assert json_bytes(result).decode() == (
        '{\n "code": "compile.pass",\n "contract": 1,\n "evidence": {\n  "a": {},\n  "b": [\n   1,\n   2.5\n  ],\n'
        '  "n": []\n },\n "gate": "compile",\n "message": "ä",\n "schema": "kgen.gate-result/1",\n'
        ' "seconds": "inf",\n "status": "pass"\n}\n'
    )


class Colour(enum.Enum):
    RED, NONE = "red", ""


class Word(str):
    """A text of another class."""


@dataclass(frozen=True)
class Pair:
    """A record within a record; without a schema."""

    z: object = None
    a: object = field(default=3, metadata=OPTIONAL)


@dataclass(frozen=True)
class Empty:
    pass


@pytest.mark.parametrize(
    "value",
    [
        *(Empty(), Pair(), Pair(Pair(Empty(), 4), 3.0), Pair((), ()), Pair({"b": Colour.RED, "a": Colour.NONE})),
        *((), (1, (2, [])), {1: {"x": 1}, "k": (2,)}, MappingProxyType({"k": MappingProxyType({})})),
        *(Word("w"), {Word("k"): [Word("v")]}, [float("nan"), float("-inf")], -0.0, [True, None], Candidate),
        *(Origin("search", {"nested": Pair(Origin("x"))}), Ranked("0001-aa", 1.5), Ranked("a", 2.0, True, ((1, 2.0),))),
    ],
    ids=repr,
)
def test_whatever_records_hold_is_written_as_their_json_in_the_standard_librarys_form(value: Any) -> None:
    if value is Candidate:  # a class is no record of it
        with pytest.raises(TypeError):
            json_bytes(value)
        return
    wanted = json.dumps(to_json(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    assert json_bytes(value).decode() == wanted + "\n"


def test_a_file_that_was_changed_is_seen_whatever_its_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "origin.json"
    for name in ("search", "openai", "search"):
        path.write_bytes(json_bytes(Origin(name)))
        os.utime(path, (1, 1))
        assert read_record(Origin, path).proposer == name


def test_one_text_is_one_record_of_each_class_and_damage_is_told_of_every_file_again() -> None:
    text = json_bytes(Origin("search", {"seed": 3}))
    assert parse_record(Origin, text, "a") is parse_record(Origin, bytes(bytearray(text)), "b")
    for where in ("a", "b", "a"):
        with pytest.raises(IntegrityError, match=f"^{where}: "):
            parse_record(GateResult, text, where)
        with pytest.raises(IntegrityError, match=f"^{where} is damaged: "):
            parse_record(Origin, text[:-3], where)
        with pytest.raises(IntegrityError, match=f"^{where}: expected a list of build records"):
            parse_builds(text, Path(where))


def test_what_is_kept_has_a_bound_and_those_used_last_stay() -> None:
    kept, made = Kept(10), list[bytes]()

    def make(data: bytes) -> bytes:
        made.append(data)
        return data[:1]

    for data in (b"aaaa", b"bbbb", b"aaaa", b"cccc", b"aaaa", b"bbbb", b"d" * 11, b"bbbb"):
        assert kept.made("x", data, make) == data[:1]
    assert made == [b"aaaa", b"bbbb", b"cccc", b"bbbb", b"d" * 11, b"bbbb"]


def test_what_one_thread_makes_the_others_wait_for_and_a_failure_is_tried_by_the_next() -> None:
    kept, made, start, found = Kept(100), list[int](), threading.Barrier(4), list[str]()

    def make(data: bytes) -> str:
        made.append(len(made))
        time.sleep(0.02)  # for the others to ask meanwhile; none of them has to be in time
        if len(made) == 1:
            raise ValueError("the first")
        return data.decode()

    def ask() -> None:
        start.wait()
        try:
            found.append(kept.made("x", b"text", make))
        except ValueError as error:
            found.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["text", "text", "text", "the first"] and made == [0, 1]
    assert kept.made("x", b"text", make) == "text" and made == [0, 1]
