"""The decode loop on a toy model: speculative output is plain output, with any drafts, stops and constraints."""

import json
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy_engine import ForgetfulEngine, ToyEngine

from kgen.model.generation.grammar import Constraint, JsonSchema, Regex, Vocabulary
from kgen.model.generation.lookup import LookupDrafter
from kgen.model.generation.protocol import Drafter, TokenConstraint
from kgen.model.generation.sampling import Sampling, SamplingRows, draw
from kgen.model.generation.speculative import Completion, Request, generate
from kgen.model.generation.stopping import Reason, Stop, StopRules

VOCAB = 300
EOS = 299
VOCABULARY = Vocabulary.of(VOCAB, lambda i: bytes([i]) if i < 256 else b'": ' if i == 256 else b"", (EOS,))
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "on": {"type": "boolean"}},
    "required": ["n", "on"],
    "additionalProperties": False,
}


def plain(engine: ToyEngine, request: Request) -> tuple[list[int], Stop]:
    """One request alone, token by token, from the model's definition: no batch, no state, no rollback."""
    generated: list[int] = []
    constraint = None if request.constraint is None else request.constraint.copy()
    rows = SamplingRows.of([request.sampling])
    while True:
        logits = engine.logits_after([*request.prompt, *generated]).unsqueeze(0)
        mask = None if constraint is None else constraint.mask().unsqueeze(0)
        generated.append(int(draw(logits, rows, torch.tensor([len(generated)]), mask)))
        if constraint is not None:
            constraint.advance(generated[-1])
        stop = request.stop.check(generated, constraint is not None and constraint.finished())
        if stop is not None:
            return generated, stop


class Guesser:
    """Drafts that are right with a given chance, from the known outputs; chance 0 is always wrong, 1 always right."""

    def __init__(self, requests: Sequence[Request], outputs: Sequence[list[int]], width: int, chance: float) -> None:
        self._full = [[*r.prompt, *o] for r, o in zip(requests, outputs, strict=True)]
        self._width, self._chance = width, chance
        self._generator = torch.Generator().manual_seed(3)

    def __call__(self, histories: Sequence[Sequence[int]]) -> torch.Tensor:
        drafts = torch.zeros(len(histories), self._width - 1, dtype=torch.int64)
        for row, (history, full) in enumerate(zip(histories, self._full, strict=True)):
            assert list(history) == full[: len(history)]
            for i in range(self._width - 1):
                place = len(history) + i
                truth = full[place] if place < len(full) else 0
                right = float(torch.rand((), generator=self._generator)) < self._chance
                drafts[row, i] = truth if right else (truth + 1) % VOCAB
        return drafts


def mixed_requests(constraint: TokenConstraint | None = None) -> list[Request]:
    """Prompts, settings and stops of all kinds in one batch."""
    stop = StopRules(40, frozenset({EOS}), ((7, 8), (5,)))
    return [
        Request((1, 2, 3), stop),
        Request((4,), stop, Sampling(temperature=0.8, seed=1)),
        Request(tuple(range(20, 33)), StopRules(17), Sampling(temperature=1.0, top_k=8, seed=2)),
        Request((9, 9), StopRules(1), Sampling(temperature=1.0, top_p=0.6, seed=3)),
        Request((50, 51), StopRules(60, frozenset({EOS})), Sampling(temperature=1.0, seed=4), constraint),
        Request((50, 51, 52, 53), StopRules(60, frozenset({EOS})), Sampling(), constraint),
    ]


def drafter_of(kind: str, requests: Sequence[Request], outputs: Sequence[list[int]], width: int) -> Drafter:
    if kind == "lookup":
        return LookupDrafter(width - 1)
    if kind == "always end":
        return lambda histories: torch.full((len(histories), width - 1), EOS)
    return Guesser(requests, outputs, width, {"right": 1.0, "half": 0.5, "wrong": 0.0}[kind])


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("kind", ["right", "half", "wrong", "lookup", "always end"])
@pytest.mark.parametrize("width", [2, 3, 8])
def test_speculative_output_is_plain_output(width: int, kind: str, constrained: bool) -> None:
    requests = mixed_requests(Constraint(JsonSchema(SCHEMA), VOCABULARY) if constrained else None)
    engine = ToyEngine(len(requests), VOCAB)
    expected = [plain(engine, r) for r in requests]
    found = generate(engine, requests, width, drafter_of(kind, requests, [e[0] for e in expected], width))
    assert [(list(f.tokens), f.stop) for f in found] == expected


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_plain_decoding_in_a_batch_is_each_request_alone(constrained: bool) -> None:
    requests = mixed_requests(Constraint(JsonSchema(SCHEMA), VOCABULARY) if constrained else None)
    engine = ToyEngine(len(requests), VOCAB)
    found = generate(engine, requests)
    assert [(list(f.tokens), f.stop) for f in found] == [plain(engine, r) for r in requests]
    assert {f.mean_accepted_length for f in found} == {1.0} and {f.drafted for f in found} == {0}


@given(
    prompt_sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    width=st.integers(1, 6),
    most=st.integers(1, 20),
    noise=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_drafted_the_output_stays(
    prompt_sizes: list[int], temperature: float, width: int, most: int, noise: int
) -> None:
    stop = StopRules(most, frozenset({3}), ((1, 2),))
    requests = [
        Request(tuple((i * j) % 6 for j in range(size)), stop, Sampling(temperature=temperature, seed=i))
        for i, size in enumerate(prompt_sizes)
    ]
    engine = ToyEngine(len(requests), 6, order=2, sharpness=1.0)  # six tokens: random drafts are often right
    generator = torch.Generator().manual_seed(noise)

    def drafter(histories: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.randint(6, (len(histories), width - 1), generator=generator)

    found = generate(engine, requests, width, drafter)
    assert [(list(f.tokens), f.stop) for f in found] == [plain(engine, r) for r in requests]


def test_an_engine_that_rolls_back_wrongly_gives_other_output() -> None:
    requests = mixed_requests()
    expected = [plain(ToyEngine(1, VOCAB), r)[0] for r in requests]
    wrong = ForgetfulEngine(len(requests), VOCAB)
    assert [list(f.tokens) for f in generate(wrong, requests, 4, LookupDrafter(3))] != expected


def outcome(width: int, chance: float) -> tuple[Completion, int]:
    request = Request((1, 2, 3, 4, 5), StopRules(21), Sampling(temperature=1.0, seed=5))
    engine = ToyEngine(1, VOCAB)
    drafter = Guesser([request], [plain(engine, request)[0]], width, chance)
    [found] = generate(engine, [request], width, drafter)
    return found, engine.steps


def test_right_drafts_fill_every_step() -> None:
    # Width 4, prompt 5: a step for the first four prompt tokens; then the fifth and three drafts give four tokens
    # a step. 21 tokens are five such steps and one that stops at its first token.
    found, steps = outcome(4, 1.0)
    assert (steps, found.steps, found.drafted, found.accepted) == (7, 6, 18, 16)
    assert found.mean_accepted_length == 21 / 6


def test_wrong_drafts_cost_nothing_but_their_place() -> None:
    found, steps = outcome(4, 0.0)
    assert (steps, found.steps, found.drafted, found.accepted) == (22, 21, 63, 0)
    assert found.mean_accepted_length == 1


def test_half_right_drafts_are_between() -> None:
    found, _ = outcome(4, 0.5)
    # three drafts, each right with 1/2: 1 + 1/2 + 1/4 + 1/8 tokens a step expected
    assert 1.3 < found.mean_accepted_length < 2.6


class Scripted(ToyEngine):
    """Continues any text with the next token of a script, whatever the context says."""

    def __init__(self, rows: int, script: Sequence[int]) -> None:
        super().__init__(rows, VOCAB, order=len(script) + 2)
        self._script = list(script)

    def logits_after(self, tokens: Sequence[int]) -> torch.Tensor:
        place = len(tokens) - 1  # prompts are one token
        return torch.nn.functional.one_hot(torch.tensor(self._script[place % len(self._script)]), VOCAB).float()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("rules", "tokens", "stop"),
    [
        (StopRules(9, sequences=((13, 14, 15),)), [10, 11, 12, 13, 14, 15], Stop(Reason.SEQUENCE, 3)),
        (StopRules(9, sequences=((11, 12),)), [10, 11, 12], Stop(Reason.SEQUENCE, 2)),
        (StopRules(9, frozenset({14}), ((13, 14, 15),)), [10, 11, 12, 13, 14], Stop(Reason.EOS, 1)),
        (StopRules(3, sequences=((13,),)), [10, 11, 12], Stop(Reason.LENGTH, 0)),
        (StopRules(9, sequences=((0, 10),)), list(range(10, 19)), Stop(Reason.LENGTH, 0)),  # 0 is of the prompt
    ],
)
def test_stops_hold_wherever_steps_cut_the_output(width: int, rules: StopRules, tokens: list[int], stop: Stop) -> None:
    def right(histories: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor([[9 + len(h) + i for i in range(width - 1)] for h in histories]).view(-1, width - 1)

    for drafter in (right, LookupDrafter(width - 1)):
        [found] = generate(Scripted(1, range(10, 30)), [Request((0,), rules)], width, drafter)
        assert (list(found.tokens), found.stop) == (tokens, stop)


@pytest.mark.parametrize("width", [1, 4])
def test_constrained_output_parses_whatever_the_model_says(width: int) -> None:
    constraint = Constraint(JsonSchema(SCHEMA, compact=True), VOCABULARY)
    stop = StopRules(60, frozenset({EOS}))
    requests = [Request((s,), stop, Sampling(temperature=s / 4, seed=s), constraint) for s in range(12)]
    drafter = LookupDrafter(width - 1)
    texts = set()
    for found in generate(ToyEngine(12, VOCAB, sharpness=5.0), requests, width, drafter):
        texts.add(b"".join(VOCABULARY.tokens[t] for t in found.tokens))
        value = json.loads(b"".join(VOCABULARY.tokens[t] for t in found.tokens))
        assert found.stop == Stop(Reason.GRAMMAR, 0)
        assert set(value) == {"n", "on"} and 0 <= value["n"] <= 999 and isinstance(value["on"], bool)
    assert len(texts) > 6 and not constraint.finished()  # the caller's constraint stays where it was


def test_right_drafts_are_accepted_under_a_constraint() -> None:
    stop = StopRules(60, frozenset({EOS}))
    request = Request((50,), stop, Sampling(temperature=1.0, seed=9), Constraint(Regex("[ab]{20}"), VOCABULARY))
    engine = ToyEngine(1, VOCAB)
    tokens, reason = plain(engine, request)
    [found] = generate(engine, [request], 5, Guesser([request], [tokens], 5, 1.0))
    assert list(found.tokens) == tokens and len(tokens) == 20 and reason.reason is Reason.GRAMMAR
    assert (found.steps, found.drafted, found.accepted) == (4, 16, 16)


def test_a_right_draft_of_the_last_token_ends_the_request_in_its_step() -> None:
    request = Request((50,), StopRules(60), Sampling(), Constraint(Regex("xyz"), VOCABULARY))
    [found] = generate(ToyEngine(1, VOCAB), [request], 3, lambda h: torch.tensor([list(b"xy")]))
    assert found.tokens == tuple(b"xyz") and found.steps == 1
    [found] = generate(ToyEngine(1, VOCAB), [request], 6, lambda h: torch.tensor([list(b"xyzxy")]))
    assert found.tokens == tuple(b"xyz") and found.steps == 1 and found.accepted == 3


def test_logits_that_leave_no_token_are_an_error_that_names_the_request() -> None:
    class Broken(ToyEngine):
        def logits_after(self, tokens: Sequence[int]) -> torch.Tensor:
            good = super().logits_after(tokens)
            return good * float("nan") if tokens[-1] == 77 else good

    requests = [Request((1,), StopRules(5)), Request((77,), StopRules(5))]
    with pytest.raises(ValueError, match="request 1: the logits leave no token"):
        generate(Broken(2, VOCAB), requests)


def test_what_does_not_fit_is_refused() -> None:
    good = Request((1,), StopRules(5))
    engine = ToyEngine(1, VOCAB)
    with pytest.raises(ValueError, match="request 0: give a prompt"):
        generate(engine, [Request((), StopRules(5))])
    with pytest.raises(ValueError, match="request 0: give a prompt"):
        generate(engine, [Request((VOCAB,), StopRules(5))])
    for requests, width in (([], 1), ([good], 0), ([good], 2)):
        with pytest.raises(ValueError, match="at least one request"):
            generate(engine, requests, width)
    with pytest.raises(ValueError, match=r"not int64 \(1, 2\)"):
        generate(engine, [good], 3, lambda h: torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"token {VOCAB}, outside the vocabulary of {VOCAB}"):
        generate(engine, [good], 2, lambda h: torch.full((1, 1), VOCAB))


@pytest.mark.parametrize(
    ("history", "drafts"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # three tokens are found again
        ([5, 3, 7, 1, 3, 8, 2, 3], [8, 2, 3, 8]),  # one token, its latest place; what follows is repeated
        ([4, 4, 4], [4, 4, 4, 4]),
        ([1, 2, 3], [3, 3, 3, 3]),  # nothing is found
        ([6], [6, 6, 6, 6]),
    ],
)
def test_lookup_by_hand(history: list[int], drafts: list[int]) -> None:
    assert LookupDrafter(4)([history]).tolist() == [drafts]
