"""Constrained output: masks by hand, any walk through the masks parses, rolling back is replaying, bad grammars."""

import json
import random
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.model.generation.grammar import Constraint, Grammar, JsonSchema, Lark, Regex, Vocabulary
from kgen.model.generation.protocol import fill_masks

SIZE, EOS, OTHER_EOS, SPECIAL = 512, 500, 501, 502
PIECES = ('{"', '":', '",', '"}', "true", "false", "null", ", ", "ab", "abc", "a", "é", "123", '["', "]}", "  ")
VOCABULARY = Vocabulary.of(
    SIZE, lambda i: bytes([i]) if i < 256 else dict(enumerate((p.encode() for p in PIECES), 256)).get(i, b""), (EOS,)
)


def allowed(constraint: Constraint) -> list[str | int]:
    """Texts of the tokens of the mask, in order of their ids; ids of tokens without a text."""
    ids: list[int] = constraint.mask().nonzero().flatten().tolist()
    return [VOCABULARY.tokens[i].decode() or i for i in ids]


def taken(constraint: Constraint, text: bytes) -> Constraint:
    for byte in text:
        constraint.advance(byte)
    return constraint


def walk(constraint: Constraint, seed: int, most: int) -> list[int]:
    """Random tokens of the masks until the output is finished or ends; a token that may end it is preferred late."""
    chooser = random.Random(seed)
    tokens: list[int] = []
    while not constraint.finished():
        ids = constraint.mask().nonzero().flatten().tolist()
        assert len(tokens) < most and ids
        tokens.append(EOS if EOS in ids and len(tokens) > most // 4 else chooser.choice(ids))
        constraint.advance(tokens[-1])
    return tokens


def text(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.tokens[t] for t in tokens).decode("utf-8")


def test_a_mask_by_hand() -> None:
    constraint = Constraint(Regex("a[bc]{2}d?"), VOCABULARY)
    assert allowed(constraint) == ["a", "ab", "abc", "a"]  # one byte, two pieces, and the piece equal to the byte
    constraint.advance(256 + PIECES.index("ab"))
    assert allowed(constraint) == ["b", "c"]
    constraint.advance(ord("b"))
    assert allowed(constraint) == ["d", EOS] and not constraint.finished()
    constraint.advance(ord("d"))
    assert constraint.finished() and allowed(constraint) == []


def test_an_end_token_finishes_what_may_end() -> None:
    constraint = taken(Constraint(Regex("a+"), VOCABULARY), b"aa")
    constraint.advance(EOS)
    assert constraint.finished() and not constraint.mask().any()
    with pytest.raises(ValueError, match="nothing may follow"):
        constraint.advance(ord("a"))
    constraint.rollback(1)
    assert not constraint.finished() and allowed(constraint) == ["a", "a", EOS]


def test_each_of_several_end_tokens_may_end() -> None:
    both = Vocabulary(VOCABULARY.tokens, (EOS, OTHER_EOS))
    constraint = taken(Constraint(Regex("a+"), both), b"a")
    assert constraint.mask()[[EOS, OTHER_EOS, SPECIAL]].tolist() == [True, True, False]
    constraint.advance(OTHER_EOS)
    assert constraint.finished()


def test_a_token_outside_the_mask_is_refused_and_changes_nothing() -> None:
    constraint = taken(Constraint(JsonSchema({"enum": [12, 13]}), VOCABULARY), b"1")
    before = allowed(constraint)
    for token in (ord("1"), EOS, SPECIAL, -1, SIZE, 256):
        with pytest.raises(ValueError, match=f"token {token} is not allowed by the grammar after 1 tokens$"):
            constraint.advance(token)
        assert allowed(constraint) == before == ["2", "3"]


def test_forced_text_is_spelt_as_the_vocabulary_encodes_it() -> None:
    assert allowed(Constraint(Regex("abcd"), VOCABULARY)) == ["abc"]
    spelt = Vocabulary(VOCABULARY.tokens, (EOS,), encode=list)  # a tokenizer that knows only bytes
    assert Constraint(Regex("abcd"), spelt).mask().nonzero().flatten().tolist() == [ord("a")]
    lossy = Vocabulary(VOCABULARY.tokens, (EOS,), encode=lambda text: list(text.lower()))
    assert Constraint(Regex("ABab"), lossy).mask().nonzero().flatten().tolist() == [ord("A")]


def test_longest_match_by_hand() -> None:
    found = VOCABULARY.longest_match('xab{"abcé'.encode())
    assert [VOCABULARY.tokens[t].decode() for t in found] == ["x", "ab", '{"', "abc", "é"]
    assert VOCABULARY.longest_match(b"a") == [ord("a")]  # the lower id of equal bytes
    assert Vocabulary((b"a", b""), (1,)).longest_match(b"bab") == [0]


def test_a_schema_may_be_text_and_white_space_may_be_forbidden() -> None:
    schema = {"type": "array", "items": {"type": "boolean"}}
    loose = taken(Constraint(JsonSchema(json.dumps(schema)), VOCABULARY), b"[true")
    assert {" ", "  ", "\n", ",", ", ", "]"} <= set(allowed(loose))
    assert allowed(taken(Constraint(JsonSchema(schema, compact=True), VOCABULARY), b"[true")) == [",", "]"]


def test_lark_grammars_nest() -> None:
    nested = Lark('start: "(" start* ")"')
    assert taken(Constraint(nested, VOCABULARY), b"(()())").finished()
    with pytest.raises(ValueError, match="not allowed"):
        taken(Constraint(nested, VOCABULARY), b"(]")


SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n}, st.integers(-99, 99), st.integers(0, 99)
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}(é|x)$"}),
    st.lists(st.one_of(st.integers(-9, 9), st.text('ab"\\é', max_size=3), st.booleans()), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties)[::2],
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda s, n: {"type": "array", "items": s, "maxItems": n}, inner, st.integers(0, 2)),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3).map(_object),
        st.lists(inner, min_size=1, max_size=2).map(lambda s: {"anyOf": s}),
    ),
    max_leaves=4,
)


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """The part of JSON schema that SCHEMAS uses, judged on the parsed value."""
    if "anyOf" in schema:
        return any(conforms(value, s) for s in schema["anyOf"])
    if "enum" in schema:
        return any(value == v and type(value) is type(v) for v in schema["enum"])
    kind = schema["type"]
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        short = isinstance(value, str) and len(value) <= schema.get("maxLength", 99)
        return short and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) <= schema["maxItems"]
            and all(conforms(v, schema["items"]) for v in value)
        )
    known = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(schema["properties"])
    return known and all(conforms(v, schema["properties"][n]) for n, v in value.items())


@given(schema=SCHEMAS, seed=st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_any_walk_through_the_masks_is_json_of_the_schema(schema: dict[str, Any], seed: int) -> None:
    tokens = walk(Constraint(JsonSchema(schema, compact=True), VOCABULARY), seed, 2000)
    assert conforms(json.loads(text(tokens)), schema)


@given(schema=SCHEMAS, seed=st.integers(0, 10**6), data=st.data())
@settings(max_examples=120, deadline=None)
def test_rolling_back_is_replaying(schema: dict[str, Any], seed: int, data: st.DataObject) -> None:
    grammar = JsonSchema(schema, compact=True)
    walked = Constraint(grammar, VOCABULARY)
    tokens = walk(walked, seed, 2000)
    cut = data.draw(st.integers(0, len(tokens)))
    walked.rollback(len(tokens) - cut)
    replayed = Constraint(grammar, VOCABULARY)
    for token in tokens[:cut]:
        replayed.advance(token)
    for token in tokens[cut:]:
        assert torch.equal(walked.mask(), replayed.mask()) and not walked.finished()
        walked.advance(token)
        replayed.advance(token)
    assert walked.finished() and replayed.finished()


def test_a_copy_goes_its_own_way() -> None:
    constraint = taken(Constraint(Regex("[ab]{3}"), VOCABULARY), b"a")
    twin = taken(constraint.copy(), b"bb")
    assert twin.finished() and not constraint.finished()
    assert allowed(constraint) == ["a", "b", "ab", "a"]
    twin.rollback(3)
    constraint.rollback(1)
    assert allowed(twin) == allowed(constraint)


def test_more_than_was_taken_cannot_be_taken_back() -> None:
    constraint = taken(Constraint(Regex("[ab]+"), VOCABULARY), b"aa")
    for count in (3, -1):
        with pytest.raises(ValueError, match="2 were taken"):
            constraint.rollback(count)
    constraint.rollback(2)
    assert allowed(constraint) == ["a", "b", "ab", "a"]


def test_a_batch_of_masks() -> None:
    out = torch.zeros(3, SIZE, dtype=torch.bool)
    first = Constraint(Regex("[xy]z"), VOCABULARY)
    fill_masks([first, None, taken(first.copy(), b"x")], out)
    assert [row.nonzero().flatten().tolist() for row in out] == [[ord("x"), ord("y")], list(range(SIZE)), [ord("z")]]
    with pytest.raises(ValueError, match="does not fit"):
        fill_masks([first], torch.zeros(1, SIZE + 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="give bool"):
        fill_masks([first], out)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Regex("(a"), "unclosed group"),
        (Lark("start: missing"), "missing"),
        (Lark("begin: /a/"), "start"),
        (JsonSchema({"type": "objct"}), "objct"),
        (JsonSchema({"not": {}}), "not"),
        (JsonSchema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
        (JsonSchema({"$ref": "#/nowhere"}), "nowhere"),
        (JsonSchema('{"type": '), "not a JSON object"),
        (JsonSchema({"enum": [b"bytes"]}), "not a JSON object"),
        (JsonSchema("[1]"), "not a JSON object"),
    ],
    ids=str,
)
def test_a_grammar_that_cannot_be_used_is_refused_in_one_line(grammar: Grammar, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Constraint(grammar, VOCABULARY)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 260


def test_a_vocabulary_that_lacks_needed_bytes_is_named_where_it_is_noticed() -> None:
    few = Vocabulary((b"a", b"b", b""), (2,))
    with pytest.raises(ValueError, match="no token of the vocabulary can go on"):
        Constraint(Regex("[cd]a"), few)
    constraint = Constraint(Regex("[ab]c|aa"), few)
    constraint.advance(1)
    with pytest.raises(ValueError, match="no token of the vocabulary can go on") as caught:
        constraint.mask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("eos", [(), (0,), (3,), (-1,)], ids=str)
def test_an_end_token_must_be_one_without_bytes(eos: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="eos"):
        Vocabulary((b"a", b"b", b""), eos)


@pytest.mark.parametrize(
    "grammar", [Regex("a" * 65_537), Lark("start: " + "a" * 65_537), JsonSchema('"' + "a" * 65_537)]
)
def test_a_grammar_that_is_too_long_is_refused_at_once(grammar: Grammar) -> None:
    with pytest.raises(ValueError, match=r"the grammar has \d+ characters, at most 65536 are taken"):
        Constraint(grammar, VOCABULARY)
