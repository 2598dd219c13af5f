"""When a request ends, by hand."""

import pytest

from kgen.model.generation.stopping import Reason, Stop, StopRules

RULES = StopRules(max_tokens=6, eos=frozenset({0, 9}), sequences=((4, 5), (3, 4, 5), (7,)))


@pytest.mark.parametrize(
    ("generated", "stop"),
    [
        ([1], None),
        ([1, 2, 0], Stop(Reason.EOS, 1)),
        ([9], Stop(Reason.EOS, 1)),
        ([0, 1], None),  # asked after each token, an earlier one has ended it
        ([4, 5], Stop(Reason.SEQUENCE, 2)),
        ([3, 4, 5], Stop(Reason.SEQUENCE, 3)),  # the longest
        ([4, 4, 5], Stop(Reason.SEQUENCE, 2)),
        ([5], None),
        ([4, 5, 5], None),
        ([1, 7], Stop(Reason.SEQUENCE, 1)),
        ([1, 1, 1, 1, 1], None),
        ([1, 1, 1, 1, 1, 1], Stop(Reason.LENGTH, 0)),
        ([1, 1, 1, 1, 4, 5], Stop(Reason.SEQUENCE, 2)),  # before the length
    ],
)
def test_the_end_by_hand(generated: list[int], stop: Stop | None) -> None:
    assert RULES.check(generated) == stop


def test_a_finished_grammar_ends_a_request_unless_a_token_did() -> None:
    assert RULES.check([1], grammar_finished=True) == Stop(Reason.GRAMMAR, 0)
    assert RULES.check([1] * 6, grammar_finished=True) == Stop(Reason.GRAMMAR, 0)
    assert RULES.check([1, 0], grammar_finished=True) == Stop(Reason.EOS, 1)
    assert RULES.check([4, 5], grammar_finished=True) == Stop(Reason.SEQUENCE, 2)


@pytest.mark.parametrize(
    ("rules", "said"), [({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1, "sequences": ((),)}, "empty")]
)
def test_rules_without_a_meaning_are_refused(rules: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StopRules(**rules)
