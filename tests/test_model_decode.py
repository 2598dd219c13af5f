"""The decode model at nano dims on CPU: schedule, state, seats, statistics of its activations, float64 reference."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kgen.contract import Op, Role, Values
from kgen.model.bind import OpCall, ServeBinder, StockBinder, seat_call
from kgen.model.dims import MODELS, ModelDims, model_dims
from kgen.model.reference import Reference
from kgen.model.session import Session, lowest_argmax
from kgen.model.step import DecodeStep, new_state, seats
from kgen.model.weights import OUTLIER_EVERY, ModelWeights, cast, checksum, draw
from kgen.ops import REGISTRY
from kgen.records import Problem

ARCH = "sm_90a"
DIMS = model_dims("nano")
BIN = 4


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    return draw(DIMS, 11, "cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recorder:
    """The stock ops, with the scalars of every AttnRes call and the problems of all seats written down."""

    def __init__(self) -> None:
        self.seats: Counter[str] = Counter()
        self.calls: list[tuple[str, str, int, int]] = []

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        stock = op.stock(problem)
        self.seats[problem.key] += 1

        def call(values: Values) -> dict[str, torch.Tensor]:
            if op.name == "attn_res":
                self.calls.append((seat, problem.axes["variant"], int(values["nb"]), int(values["write_idx"])))
            return stock(values)

        return call


class InPlace:
    """A binder of launchers that behave as kernels do: they write into the caller's outputs and states."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        stock = op.stock(problem)
        names = [t.name for t in op.present(problem)] + [s.name for s in op.scalars]

        def launch(*args: object) -> None:
            values = dict(zip(names, args, strict=False))
            assert len(args) == len(names) + 1
            work = args[-1]
            assert isinstance(work, torch.Tensor) and work.shape == (3,) and work.dtype == torch.int32
            got = stock({k: v for k, v in values.items() if k not in outs})  # type: ignore[misc]
            for name, value in got.items():
                values[name].copy_(value)  # type: ignore[attr-defined]

        outs = {t.name for t in op.present(problem) if t.role is Role.OUT}
        return seat_call(op, problem, launch, [("i32", (3,))], "cpu")


def session(weights: ModelWeights, binder: object = None, count: int = BIN, tokens: int = BIN) -> Session:
    step = DecodeStep(DIMS, weights, tokens, ARCH, binder or StockBinder(), REGISTRY)  # type: ignore[arg-type]
    return Session(step, count)


def ids(steps: int, count: int = BIN, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, DIMS.vocab, (steps, count), generator=torch.Generator().manual_seed(seed))


def test_blocks_are_opened_snapshotted_and_mixed_as_the_architecture_says(weights: ModelWeights) -> None:
    recorder = Recorder()
    session(weights, recorder).run(ids(1)[0])
    want = []
    for i in range(8):  # nano: blocks of four layers
        opens = i in (0, 4)
        done = {0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2}[i]
        want.append((f"layer{i}.pre", "prefix_only" if i == 0 else "delta", done, i // 4 if opens else -1))
        want.append((f"layer{i}.post", "prefix_only" if opens else "delta", done + opens, -1))
    assert recorder.calls == [*want, ("final", "final", 2, -1)]


@pytest.mark.parametrize("name", MODELS)
def test_seats_say_what_a_step_binds(name: str) -> None:
    recorder, dims = Recorder(), model_dims(name)
    DecodeStep(dims, draw(DIMS, 1, "cpu"), 8, ARCH, recorder, REGISTRY)
    assert recorder.seats == seats(dims, 8, ARCH, REGISTRY)
    assert recorder.seats[f"moe_shared/{name}/t8/{ARCH}"] == dims.layers


def test_stock_lies_a_rounding_away_from_float64(weights: ModelWeights) -> None:
    given = ids(12)
    got = session(weights).teacher_forced(given)
    want = Reference(DIMS, weights, ARCH, REGISTRY).session(BIN, given.shape[1]).teacher_forced(given)
    distance = torch.linalg.vector_norm(got.hidden.double() - want.hidden, dim=-1)
    relative = (distance / torch.linalg.vector_norm(want.hidden, dim=-1)).median()
    assert 1e-3 < float(relative) < 5e-2
    assert want.logits.dtype == torch.float64
    assert 1.0 < float(want.logits.std()) < 6.0


def test_a_sequence_does_not_depend_on_its_batch_or_on_padding(weights: ModelWeights) -> None:
    given = ids(5)
    together = session(weights).teacher_forced(given)
    padded = session(weights, count=1).teacher_forced(given[:, :1])
    assert torch.equal(padded.logits[:, 0], together.logits[:, 0])
    noisy = session(weights, count=1)
    noisy.padding = 7
    noisy.__post_init__()
    assert torch.equal(noisy.teacher_forced(given[:, :1]).logits, padded.logits)


def test_a_step_depends_on_the_sequence_so_far_and_a_reset_forgets_it(weights: ModelWeights) -> None:
    run, given = session(weights), ids(3)
    first = run.teacher_forced(given).logits
    changed = given.clone()
    changed[0] = (changed[0] + 1) % DIMS.vocab
    assert not torch.equal(run.teacher_forced(changed).logits[2], first[2])
    assert torch.equal(run.teacher_forced(given).logits, first)


def test_kernels_that_write_in_place_give_the_stock_model(weights: ModelWeights) -> None:
    given = ids(4)
    want = session(weights).teacher_forced(given)
    got = session(weights, InPlace()).teacher_forced(given)
    assert torch.equal(got.logits, want.logits) and torch.equal(got.hidden, want.hidden)


def test_a_set_without_kernels_serves_the_stock_model(weights: ModelWeights, tmp_path: Path) -> None:
    given = ids(3)
    got = session(weights, ServeBinder(ARCH, "cpu", tmp_path)).teacher_forced(given)
    assert torch.equal(got.logits, session(weights).teacher_forced(given).logits)


def test_greedy_generation_follows_its_own_tokens(weights: ModelWeights) -> None:
    run, prompt = session(weights), ids(3)
    tokens = run.generate(prompt, 5)
    replay = run.teacher_forced(torch.cat([prompt, tokens[:-1]]))
    assert torch.equal(lowest_argmax(replay.logits)[2:], tokens)


def test_the_lowest_id_wins_a_tie_and_a_nan_row_stays_in_the_vocabulary() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [float("nan"), 1.0, 2.0]])
    assert lowest_argmax(logits).tolist() == [1, 2]


def test_activations_grow_with_depth_and_have_outlier_channels(weights: ModelWeights) -> None:
    sizes: list[float] = []

    class Watch(Recorder):
        def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
            stock = op.stock(problem)

            def call(values: Values) -> dict[str, torch.Tensor]:
                got = stock(values)
                if "prefix" in got:
                    sizes.append(float(got["prefix"].double().square().mean().sqrt()))
                return got

            return call

    session(weights, Watch()).run(ids(1)[0])
    assert max(sizes[9:]) > 1.5 * sizes[0]
    energy = weights.embed.double().square().mean(0)
    outliers = energy > 100 * energy.median()
    assert int(outliers.sum()) == max(1, DIMS.hidden // OUTLIER_EVERY)
    assert float(energy[outliers].sum() / energy.sum()) < 0.6


def test_weights_depend_on_nothing_but_dims_and_seed() -> None:
    assert checksum(draw(DIMS, 5, "cpu")) == checksum(draw(DIMS, 5, "cpu"))
    assert checksum(draw(DIMS, 5, "cpu")) != checksum(draw(DIMS, 6, "cpu"))
    wide = cast(draw(DIMS, 5, "cpu"), torch.float64)
    assert wide.layers[0].routed.bias.dtype == wide.embed.dtype == torch.float64


def test_bad_sizes_are_refused_with_one_line(weights: ModelWeights) -> None:
    with pytest.raises(ValueError, match="no decode model with dims 'other'; known: "):
        model_dims("other")
    with pytest.raises(ValueError, match="5 sequences do not fit the bin of 4 tokens"):
        session(weights, count=5)
    with pytest.raises(ValueError, match="need more than 2 slots"):
        ModelDims(**{**vars(DIMS), "block": 2})
    with pytest.raises(RuntimeError, match="capture the session"):
        session(weights).replay(1)


def test_state_has_a_row_for_padding_too(weights: ModelWeights) -> None:
    assert new_state(DIMS, 4, weights).conv.shape[:2] == (DIMS.layers, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_captured_step_repeats_the_eager_one() -> None:
    weights = draw(DIMS, 11, "cuda")
    run = session(weights, count=3)
    given = ids(6, 3).cuda()
    eager = run.teacher_forced(given)
    run.warm()
    run.capture()
    replayed = run.teacher_forced(given)
    assert torch.equal(replayed.logits, eager.logits)
