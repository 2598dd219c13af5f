"""Exercises as a runner performs them: what is kept is what the sequences were, at every verify width."""

from pathlib import Path

import torch
from support.decoders import relative
from support.modeleval import ARCH

from kgen.gates.modeleval import perform
from kgen.gates.modeleval.exercise import EAGER, FORCED, Exercise, Seeds, Way
from kgen.gates.modeleval.loaded import Seating
from kgen.gates.modeleval.questions import token_ids
from kgen.gates.modeleval.stage import Stage
from kgen.ops import REGISTRY

SAME = 1e-11  # float64, other summation orders
DRAFTED = Exercise(FORCED, Way("nano-random", depth=4), 2, 2, 2, (EAGER,), q=4, states=2)


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
