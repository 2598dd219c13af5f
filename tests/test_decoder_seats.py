"""What a decode model asks of the callables in its seats: in-place writes suffice, blocks open where they should."""

from typing import ClassVar

import pytest
import torch
from support.decoders import CONTEXT, session, tokens, weights

from kgen.contract import Op, Role, Values
from kgen.contract.op import Registry
from kgen.model.bind import OpCall, StockBinder, seat_call
from kgen.model.decoder.config import Config, config
from kgen.model.decoder.draw import draw
from kgen.model.decoder.session import Session
from kgen.model.decoder.step import DecodeStep
from kgen.model.decoder.weights import checksum
from kgen.ops import REGISTRY
from kgen.ops.mla_dcp_merge import MlaDcpMerge
from kgen.records import Problem

NANO = config("nano-random")


class InPlace:
    """Seats with launchers that behave as kernels do: they write into the caller's outputs, states and workspaces."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        stock = op.stock(problem)
        names = [t.name for t in op.present(problem)] + [s.name for s in op.scalars]
        outs = {t.name for t in op.present(problem) if t.role is Role.OUT}

        def launch(*given: object) -> None:
            *arguments, work = given
            assert len(arguments) == len(names)
            assert isinstance(work, torch.Tensor) and work.shape == (3,) and work.dtype == torch.int32
            values = dict(zip(names, arguments, strict=True))
            got = stock({k: v for k, v in values.items() if k not in outs})  # type: ignore[misc]
            for name, value in got.items():
                values[name].copy_(value)  # type: ignore[attr-defined]

        return seat_call(op, problem, launch, [("i32", (3,))], "cpu")


def decoded(binder: object, model: Config, q: int) -> torch.Tensor:
    run = Session(DecodeStep(model, weights(), 8 // q, q, "", binder, REGISTRY), 8 // q - 1, CONTEXT)  # type: ignore[arg-type]
    ids = tokens(5, (8 // q - 1) * q).reshape(5, -1, q)
    kept = torch.arange(8 // q - 1) % q + 1
    found = []
    for row in ids:
        found.append(run.verify(row).logits.clone())
        run.accept(kept)
    return torch.stack(found)


@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("changes", [{}, {"dcp": 2}, {"fused_oproj": True}], ids=str)
def test_kernels_that_write_in_place_give_the_stock_model(q: int, changes: dict[str, object]) -> None:
    model = config("nano-random", **changes)
    assert torch.equal(decoded(InPlace(), model, q), decoded(StockBinder(), model, q))


class WideMerge(MlaDcpMerge):
    """The small dims of a group of five, of which a context may be split over fewer."""

    dims: ClassVar = {**MlaDcpMerge.dims, "nano": {**MlaDcpMerge.dims["nano"], "ranks": 5}}


def test_a_group_whose_ranks_do_not_all_hold_context_merges_the_same_rows() -> None:
    ops = Registry({**REGISTRY.ops, "mla_dcp_merge": WideMerge()})
    model, given = config("nano-random", dcp=2), tokens(5, 3)
    shapes = set()

    class Looking(StockBinder):
        def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
            stock = super().bind(op, problem, seat)

            def call(values: Values) -> dict[str, torch.Tensor]:
                if op.name == "mla_dcp_merge":
                    shapes.add((tuple(values["lat"].shape), tuple(values["lse"].shape)))  # type: ignore[union-attr]
                return stock(values)

            return call

    wide = Session(DecodeStep(model, weights(), 4, 1, "", Looking(), ops), 3, CONTEXT).teacher_forced(given)
    assert shapes == {((5, 4, 2, 512), (5, 4, 2))}
    plain = Session(DecodeStep(model, weights(), 4, 1, "", StockBinder(), REGISTRY), 3, CONTEXT).teacher_forced(given)
    assert torch.equal(wide.logits, plain.logits)


class Watch:
    """The stock ops, with the finished blocks and the block to write of each AttnRes call noted."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, int]] = []

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        stock = op.stock(problem)

        def call(values: Values) -> dict[str, torch.Tensor]:
            if op.name == "attn_res":
                self.calls.append((seat, problem.axes["variant"], int(values["nb"]), int(values["write_idx"])))
            return stock(values)

        return call


def test_blocks_are_opened_snapshotted_and_mixed_as_the_architecture_says() -> None:
    watch = Watch()
    run = Session(DecodeStep(NANO, weights(), 4, 1, "", watch, REGISTRY), 4, CONTEXT)  # type: ignore[arg-type]
    run.decode(tokens(1, 4)[0])
    assert len(watch.calls) == 17
    done = (0, 1, 1, 1, 1, 2, 2, 2)  # blocks of four layers; layer 4 opens the second one
    for i in range(8):
        pre, post = watch.calls[2 * i : 2 * i + 2]
        opens = i in (0, 4)
        assert pre[1:] == ("prefix_only" if i == 0 else "delta", done[i], i // 4 if opens else -1), pre
        assert post[1:] == ("prefix_only" if opens else "delta", done[i] + opens, -1), post
    assert watch.calls[-1][1:] == ("final", 2, -1)


def test_drawn_weights_depend_on_the_seed_alone() -> None:
    first = checksum(draw(NANO, REGISTRY, 5, "cpu"))
    assert first == checksum(draw(NANO, REGISTRY, 5, "cpu")) != checksum(draw(NANO, REGISTRY, 6, "cpu"))


def test_stock_lies_near_float64_and_not_on_it() -> None:
    ids = tokens(12, 3)
    got, want = (session(NANO, wide=wide).teacher_forced(ids) for wide in (False, True))
    error = torch.linalg.vector_norm(got.hidden.double() - want.hidden, dim=-1)
    relative = (error / torch.linalg.vector_norm(want.hidden, dim=-1)).median()
    # roundings alone make about a hundredth; where they change a router's choice, a row is farther
    assert 1e-3 < float(relative) < 0.3 and want.logits.dtype == torch.float64
    assert 1.0 < float(want.logits.std()) < 6.0
