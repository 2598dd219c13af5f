"""Exercises as a runner performs them: what is kept is what the sequences were, at every verify width."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.decoders import relative
from support.modeleval import ARCH

from kgen.gates.modeleval import perform, perform_tasks
from kgen.gates.modeleval.exercise import EAGER, FORCED, FREE, Exercise, Seeds, Way
from kgen.gates.modeleval.loaded import Seating
from kgen.gates.modeleval.questions import token_ids
from kgen.gates.modeleval.stage import Stage
from kgen.ops import REGISTRY

SAME = 1e-11  # float64, other summation orders
DRAFTED = Exercise(FORCED, Way("nano-random", depth=4), 2, 2, 2, (EAGER,), q=4, states=2)
FREED = Exercise(FREE, Way("nano-random", depth=4), 4, 3, 6, (EAGER,), other=4)


def stage() -> Stage:
    return Stage(REGISTRY, Seating(), "cpu", ARCH, Seeds(1, 2, 3), Path("none"), "float64", exact=True)


def test_given_tokens_in_verify_steps_are_all_kept() -> None:
    own = stage()
    (done,) = perform.forced(own, DRAFTED, EAGER)
    ids = token_ids(DRAFTED, own.seeds, 512, DRAFTED.steps, torch.device("cpu"))
    single = own.prepare(DRAFTED, EAGER, 8, q=1)
    by_token = ids.permute(0, 2, 1).reshape(8, 2)  # step, then place in the step
    plain = single.session.teacher_forced(by_token).logits
    drafted = done.tensors["logits"].reshape(2, 2, 4, -1).permute(0, 2, 1, 3).reshape(8, 2, -1)
    assert relative(drafted, plain) < SAME
    assert relative(done.tensors["states"][-1], perform.kept_states(single.session)) < SAME
    assert done.batches[0].steps == DRAFTED.steps


def test_what_was_said_is_said_again_in_verify_steps() -> None:
    """In float64, where no rounding parts the two: also where lengths and sequences do not fill steps and batches."""
    own = stage()
    (done,) = perform.free(own, FREED, EAGER)
    said = done.tensors["tokens"]
    prompt = token_ids(FREED, own.seeds, 512, FREED.prompt, torch.device("cpu"))[..., 0]
    read = torch.cat([prompt, said[:-1]])
    again, batch = perform.reread(own, FREED, EAGER, read)
    assert torch.equal(again[FREED.prompt - 1 :], said) and again.shape == read.shape
    assert (batch.note["requests"], batch.note["q"], batch.steps) == (4, 4, 3)


def test_a_token_that_is_not_the_greedy_one_is_noticed_in_verify_steps() -> None:
    own = stage()
    (done,) = perform.free(own, FREED, EAGER)
    said = done.tensors["tokens"].clone()
    said[2, 1] = (said[2, 1] + 1) % 512
    prompt = token_ids(FREED, own.seeds, 512, FREED.prompt, torch.device("cpu"))[..., 0]
    again, _ = perform.reread(own, FREED, EAGER, torch.cat([prompt, said[:-1]]))
    differs = (again[FREED.prompt - 1 :] != said)[:3]
    assert differs[2, 1] and int(differs.sum()) == 1


def test_answers_behind_a_prefill_are_those_behind_single_steps() -> None:
    own = stage()
    prompts = [(5, 6, 7, 8, 9), (1, 2, 3), (4, 5, 6, 7)]
    batch = own.prepare(FREED, EAGER, 16)
    got = perform_tasks.answered(batch, prompts, 3)
    for prompt, said in zip(prompts, got, strict=True):
        alone = own.prepare(FREED, EAGER, 16, requests=1)
        tokens, _ = perform.continued(alone, torch.tensor([[token] for token in prompt]), 3)
        assert said == tokens[:, 0].tolist()
    assert batch.steps == 5 - 2 + 3 - 1, "two tokens of each were read by the prefill"


@pytest.mark.parametrize("q", [1, 4])
def test_a_replay_behind_the_last_step_reads_no_position_that_the_block_table_lacks(q: int) -> None:
    """A profiler's replays do not advance: each is a step more than the exercise takes."""
    page = stage().prepare(FREED, EAGER, 8).session.state.page
    session = stage().prepare(FREED, EAGER, page, q=q).session
    session.skip(page)
    session.make_room(q)
    assert int(session.state.request_lengths().max()) == page + q <= session.state.capacity
    session.skip(q)
    replayed: list[int] = []
    session._graph = SimpleNamespace(replay=lambda: replayed.append(1))  # type: ignore[assignment]  # a capture needs a GPU
    with pytest.raises(ValueError, match=f"the context of {page + q} positions is full"):
        session.replay(1)
    assert replayed == []
